#include "cistron/io/json.h"

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "cistron/core/error.h"

namespace cistron::io {
namespace {

// Sees each event before the tree grows by it.
class Guard {
 public:
  Guard(std::string_view where, int max_depth) : where_(where), max_depth_(max_depth) {}

  bool operator()(int depth, nlohmann::json::parse_event_t event, const nlohmann::json& value) {
    using Event = nlohmann::json::parse_event_t;
    if (depth > max_depth_)
      throw Error(ErrorKind::kBadData, fmt::format("JSON nested deeper than {}", max_depth_), where_, "nothing valid is so deep");
    if (event == Event::object_start) keys_.emplace_back();
    if (event == Event::object_end) keys_.pop_back();
    if (event == Event::key && !keys_.back().insert(value.get_ref<const std::string&>()).second)
      throw Error(ErrorKind::kBadData, fmt::format("the key {} stands twice in a JSON object", value.dump()), where_,
                  "remove one");
    return true;
  }

 private:
  std::string_view where_;
  int max_depth_;
  std::vector<std::set<std::string>> keys_;
};

}  // namespace

nlohmann::json parse_json(std::string_view text, std::string_view where, int max_depth) {
  try {
    return nlohmann::json::parse(text, Guard(where, max_depth));
  } catch (const nlohmann::json::exception& error) {
    std::string reason = error.what();
    reason = reason.substr(reason.find("] ") == std::string::npos ? 0 : reason.find("] ") + 2);
    for (char& c : reason)
      if (static_cast<unsigned char>(c) < ' ' || static_cast<unsigned char>(c) > '~') c = '?';
    throw Error(ErrorKind::kBadData, "broken JSON", where, reason.substr(0, 300));
  }
}

}  // namespace cistron::io
