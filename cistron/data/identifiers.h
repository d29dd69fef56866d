#pragma once
// The identifiers of all records that were seen: tens of millions, so they lie one behind the other, and looking one up touches a
// single place of a table with open addresses.
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cistron::data {

class IdentifierTable {
 public:
  /// The identifier's number, from 0 in the order in which they came, and whether it is new.
  std::pair<size_t, bool> insert(std::string_view id);

 private:
  struct Slot {
    uint64_t hash = 0;
    size_t after = 0;  // the number + 1; 0: free
  };
  [[nodiscard]] std::string_view text(size_t number) const;
  void grow();

  std::vector<Slot> slots_ = std::vector<Slot>(1024);  // a power of two, at most half full
  std::string texts_;
  std::vector<size_t> ends_;
};

}  // namespace cistron::data
