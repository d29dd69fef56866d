#include "cistron/dist/meta.h"

#include "cistron/core/error.h"

namespace cistron::dist {
namespace {

class Meta : public Communicator {
 public:
  explicit Meta(Membership who) : Communicator(std::move(who)) {}

 private:
  std::unique_ptr<Work> start(Collective /*call*/) override { return nullptr; }
  std::unique_ptr<Communicator> make_part(Membership part) override { return std::make_unique<Meta>(std::move(part)); }
};

// Ranks first, first + step, ...
std::unique_ptr<Communicator> meta(std::string name, int first, int step, int count, int rank) {
  Membership who{.name = std::move(name), .rank = rank, .device = Device{DeviceKind::kMeta}};
  for (int i = 0; i < count; ++i) who.members.push_back(first + i * step);
  return std::make_unique<Meta>(std::move(who));
}

}  // namespace

std::unique_ptr<Mesh> meta_mesh(const MeshShape& shape, int rank) {
  CISTRON_CHECK(rank >= 0 && rank < shape.size(), "[dist] rank {} of {}", rank, shape.size());
  const int dp = shape.dp_index(rank), ep = shape.ep_index(rank);
  return std::make_unique<Mesh>(meta("world", 0, 1, shape.size(), rank), meta("dp", ep, shape.ep, shape.dp, dp),
                                meta("ep", dp * shape.ep, 1, shape.ep, ep), shape);
}

}  // namespace cistron::dist
