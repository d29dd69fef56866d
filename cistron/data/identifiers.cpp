#include "cistron/data/identifiers.h"

#include "cistron/io/checksum.h"

namespace cistron::data {

std::string_view IdentifierTable::text(size_t number) const {
  const size_t begin = number == 0 ? 0 : ends_[number - 1];
  return std::string_view(texts_).substr(begin, ends_[number] - begin);
}

std::pair<size_t, bool> IdentifierTable::insert(std::string_view id) {
  if (2 * ends_.size() >= slots_.size()) grow();
  const uint64_t hash = io::xxh64(id);
  for (size_t i = hash & (slots_.size() - 1);; i = (i + 1) & (slots_.size() - 1)) {
    Slot& slot = slots_[i];
    if (slot.after == 0) {
      texts_ += id;
      ends_.push_back(texts_.size());
      slot = {hash, ends_.size()};
      return {ends_.size() - 1, true};
    }
    if (slot.hash == hash && text(slot.after - 1) == id) return {slot.after - 1, false};
  }
}

void IdentifierTable::grow() {
  std::vector<Slot> wider(2 * slots_.size());
  for (const Slot& slot : slots_) {
    if (slot.after == 0) continue;
    size_t i = slot.hash & (wider.size() - 1);
    while (wider[i].after != 0) i = (i + 1) & (wider.size() - 1);
    wider[i] = slot;
  }
  slots_ = std::move(wider);
}

}  // namespace cistron::data
