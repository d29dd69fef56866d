#pragma once
// JSON that stays JSON while it is changed, so that inputs come past the parser. For the fuzzers' own builds.
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace cistron::fuzz {

/// Bytes as libFuzzer changes them, at most `room` longer.
inline std::string changed_bytes(std::string text, size_t room = 16) {
  const size_t size = text.size();
  text.resize(size + room);
  text.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(text.data()), size, text.size()));
  return text;
}

class JsonMutator {
 public:
  using Json = nlohmann::json;
  explicit JsonMutator(unsigned seed) : random_(seed) {}

  uint32_t below(size_t count) { return static_cast<uint32_t>(random_() % count); }

  /// `text` with one thing changed; as it is where it is no JSON.
  std::string changed(std::string_view text) {
    Json root = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (root.is_discarded()) return std::string(text);
    change(root);
    return root.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

 private:
  static void collect(Json& value, std::vector<Json*>& all) {
    all.push_back(&value);
    for (Json& inner : value)
      if (value.is_structured()) collect(inner, all);
  }

  void change(Json& root) {
    std::vector<Json*> all;
    if (root.is_structured())
      collect(root, all);
    else
      all.push_back(&root);
    Json& one = *all[below(all.size())];
    const Json other = *all[below(all.size())];
    switch (below(6)) {
      case 0:
        one = other;
        break;
      case 1:
        one = any();
        break;
      case 2:
        if (one.is_structured() && !one.empty()) one.erase(std::next(one.begin(), below(one.size())));
        break;
      case 3:
        add_to(one, other);
        break;
      default:
        change_leaf(one);
    }
  }

  void add_to(Json& to, const Json& value) {
    if (to.is_array()) to.push_back(value);
    if (!to.is_object() || to.empty()) return;
    const auto member = std::next(to.begin(), below(to.size()));
    const std::string key = member.key();
    const Json moved = *member;
    if (below(2) == 0) to.erase(key);
    to[changed_bytes(key, 2)] = below(2) == 0 ? moved : value;
  }

  void change_leaf(Json& leaf) {
    if (leaf.is_string()) leaf = changed_bytes(leaf.get<std::string>());
    if (!leaf.is_number_integer()) return;
    const auto near = static_cast<int64_t>(below(9)) - 4;
    leaf = below(3) == 0 ? any() : Json(static_cast<int64_t>(leaf.get<uint64_t>() + static_cast<uint64_t>(near)));
  }

  Json any() {
    const Json values[] = {nullptr,    true,       0,          1,   -1,    INT32_MAX, INT64_MAX, INT64_MIN,     UINT64_MAX,
                           1ULL << 32, 1ULL << 62, 3037000500, 0.5, 1e308, "",        "F32",     Json::array(), Json::object()};
    return values[below(std::size(values))];
  }

  std::minstd_rand random_;
};

/// What libFuzzer asks of a custom mutator.
inline size_t put(const std::string& text, uint8_t* data, size_t max_size) {
  const size_t size = std::min(text.size(), max_size);
  std::memcpy(data, text.data(), size);
  return size;
}

}  // namespace cistron::fuzz
