#include "cistron/dist/mesh.h"

#include <gmock/gmock.h>

#include "cistron/core/error.h"
#include "cistron/dist/check_same.h"
#include "cistron/dist/meta.h"
#include "tests/dist/support.h"
#include "tests/ops/support.h"

namespace cistron::test {
namespace {

using dist::Communicator;
using dist::Mesh;
using dist::MeshShape;
using testing::AllOf;
using testing::HasSubstr;

class OnMesh : public OnEveryWorld {};
INSTANTIATE_TEST_SUITE_P(Dist, OnMesh, testing::ValuesIn(worlds()), world_name);

TEST_P(OnMesh, AxesHoldTheRightRanks) {
  run([](Communicator& world) {
    for (int ep = 1; ep <= world.size(); ++ep) {
      if (world.size() % ep) continue;
      const Mesh mesh(world, {world.size() / ep, ep});
      const int dp_index = mesh.shape().dp_index(world.rank()), ep_index = mesh.shape().ep_index(world.rank());
      EXPECT_EQ(mesh.dp().rank(), dp_index);
      EXPECT_EQ(mesh.ep().rank(), ep_index);
      std::vector<int64_t> over_dp{world.rank()}, over_ep{world.rank()};
      mesh.dp().all_reduce(view_of(over_dp)).wait();
      mesh.ep().all_reduce(view_of(over_ep)).wait();
      int64_t want_dp = 0, want_ep = 0;
      for (int i = 0; i < mesh.shape().dp; ++i) want_dp += i * ep + ep_index;
      for (int i = 0; i < ep; ++i) want_ep += dp_index * ep + i;
      EXPECT_EQ(over_dp[0], want_dp);
      EXPECT_EQ(over_ep[0], want_ep);
    }
  });
}

TEST_P(OnMesh, AMeshOfAnotherSizeIsRefused) {
  run([](Communicator& world) {
    const MeshShape shape{world.size(), 2};
    EXPECT_THAT(error_of([&] { const Mesh mesh(world, shape); }), HasSubstr("parallel.dp, parallel.ep"));
  });
}

TEST_P(OnMesh, TheSameIsAcceptedAndTheOddRankNamed) {
  run([](Communicator& world) {
    check_same(world, "seed", "17");
    check_same(world, "config", "");
    for (int odd = 0; odd < world.size(); ++odd) {
      const std::string mine = world.rank() == odd ? "18 and more" : "17";
      const std::string error = error_of([&] { check_same(world, "seed", mine); });
      if (world.size() == 1) {
        EXPECT_EQ(error, "");
      } else if (world.size() == 2) {  // no majority: rank 0 is right
        EXPECT_THAT(error, HasSubstr("rank 1 has another seed"));
      } else {
        EXPECT_THAT(error, AllOf(HasSubstr("rank " + std::to_string(odd) + " has another seed"), HasSubstr("18 and more on rank"),
                                 HasSubstr("17 on the others")));
      }
    }
  });
}

TEST(MetaMesh, KnowsEveryRanksPlaceAndChecksShapes) {
  Context ctx = meta_context();
  for (const MeshShape shape : {MeshShape{1, 1}, MeshShape{3, 2}, MeshShape{2, 4}})
    for (int rank = 0; rank < shape.size(); ++rank) {
      const auto mesh = dist::meta_mesh(shape, rank);
      EXPECT_EQ(mesh->world().rank(), rank);
      EXPECT_EQ(mesh->world().size(), shape.size());
      EXPECT_EQ(mesh->dp().rank(), shape.dp_index(rank));
      EXPECT_EQ(mesh->ep().rank(), shape.ep_index(rank));
      EXPECT_EQ(mesh->dp().membership().world_rank(), rank);
      EXPECT_EQ(mesh->ep().membership().world_rank(), rank);
      const Tensor part = ctx.empty({3, 5}), whole = ctx.empty({3 * shape.size(), 5}), other = ctx.empty({3, 4});
      mesh->world().all_gather(part, whole).wait();
      mesh->world().reduce_scatter(whole, part).wait();
      mesh->world().all_reduce(part).wait();
      EXPECT_THAT(error_of([&] { mesh->world().all_gather(other, whole).wait(); }), HasSubstr("[all_gather] part"));
    }
  std::vector<float> host(4);
  const auto mesh = dist::meta_mesh({1, 2}, 0);
  EXPECT_THAT(error_of([&] { mesh->ep().all_reduce(view_of(host)).wait(); }), HasSubstr("not on meta"));
  EXPECT_THAT(error_of([&] { (void)mesh->world().split(0, "part"); }), HasSubstr("cannot be split"));
}

TEST(Mesh, Description) {
  EXPECT_EQ(describe(MeshShape{2, 2}, 5),
            "mesh 2 x 2 (dp x ep)\n"
            "  rank 0: dp 0, ep 0, experts 0 to 2 of 5\n"
            "  rank 1: dp 0, ep 1, experts 3 to 4 of 5\n"
            "  rank 2: dp 1, ep 0, experts 0 to 2 of 5\n"
            "  rank 3: dp 1, ep 1, experts 3 to 4 of 5\n");
  EXPECT_THAT(error_of([] { (void)describe(MeshShape{1, 4}, 3); }), HasSubstr("at most 3"));
}

}  // namespace
}  // namespace cistron::test
