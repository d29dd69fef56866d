#include "cistron/io/json.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cistron/core/error.h"

namespace cistron::io {
namespace {

// Builds the tree from the parser's events. (The library's own callback would look through all of an object after each member.)
class Builder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Builder(std::string_view where, int max_depth) : where_(where), max_depth_(static_cast<size_t>(max_depth)) {}

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open(nlohmann::json::object()); }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(nlohmann::json::array()); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    auto& members = open_.back()->get_ref<nlohmann::json::object_t&>();
    const auto [member, is_new] = members.try_emplace(name);
    if (!is_new)
      throw Error(ErrorKind::kBadData, fmt::format("the key {} stands twice in a JSON object", json_quoted(name)), where_,
                  "remove one");
    member_ = &member->second;
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& error) override {
    const std::string text = error.what();
    const size_t reason = text.find("; ");  // behind the library's own preamble
    throw Error(ErrorKind::kBadData, fmt::format("broken JSON at byte {}", position), where_,
                json_quoted(reason == std::string::npos ? text : text.substr(reason + 2)));
  }

  nlohmann::json take() { return std::move(root_); }

 private:
  template <class T>
  bool add(T&& value) {
    place() = std::forward<T>(value);
    return true;
  }
  bool open(nlohmann::json container) {
    if (open_.size() >= max_depth_)
      throw Error(ErrorKind::kBadData, fmt::format("JSON nested deeper than {}", max_depth_), where_, "nothing valid is so deep");
    nlohmann::json& at = place();
    at = std::move(container);
    open_.push_back(&at);
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }
  nlohmann::json& place() {
    if (open_.empty()) return root_;
    return open_.back()->is_object() ? *member_ : open_.back()->emplace_back();
  }

  std::string_view where_;
  size_t max_depth_;
  nlohmann::json root_;
  std::vector<nlohmann::json*> open_;  // each holds the next; only the last grows, so the pointers stay
  nlohmann::json* member_ = nullptr;   // where the value after a key goes
};

}  // namespace

nlohmann::json parse_json(std::string_view text, std::string_view where, int max_depth) {
  if (text.empty()) throw Error(ErrorKind::kBadData, "broken JSON", where, "it is empty");
  // To the library a NUL is the end of its input.
  if (text.find('\0') != std::string_view::npos) throw Error(ErrorKind::kBadData, "broken JSON", where, "it holds a NUL byte");
  Builder builder(where, max_depth);
  nlohmann::json::sax_parse(text, &builder);
  return builder.take();
}

int64_t json_integer(const nlohmann::json& value, std::string_view where) {
  const bool fits = value.is_number_integer() && !(value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX});
  if (!fits)
    throw Error(ErrorKind::kBadData, fmt::format("{} is no whole number of 64 bits", json_quoted(value.dump())), where,
                "the file is damaged; get it again");
  return value.get<int64_t>();
}

std::string json_quoted(std::string_view text) {
  return nlohmann::json(text.substr(0, 200)).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

}  // namespace cistron::io
