#include "cistron/nn/lease_order.h"

#include <gtest/gtest.h>

#include "cistron/core/error.h"

namespace cistron::nn {
namespace {

void run(LeaseOrder& order, const std::vector<size_t>& leases) {
  order.begin();
  for (const size_t lease : leases) order.next(lease);
  order.end();
}

TEST(LeaseOrder, IsThatOfTheFirstPass) {
  LeaseOrder order;
  order.begin();
  EXPECT_EQ(order.next(4), 0U);
  EXPECT_TRUE(order.known().empty());
  EXPECT_TRUE(order.is_last(0)) << "nothing is known yet";
  order.next(2);
  order.next(4);
  order.end();
  EXPECT_EQ(order.known(), (std::vector<size_t>{4, 2, 4}));
  EXPECT_FALSE(order.is_last(0));
  EXPECT_TRUE(order.is_last(1));
  EXPECT_TRUE(order.is_last(2));
  EXPECT_NO_THROW(run(order, {4, 2, 4}));
}

TEST(LeaseOrder, AnotherOrderIsRefused) {
  LeaseOrder order;
  run(order, {1, 2, 3});
  EXPECT_THROW(run(order, {1, 3, 2}), Error);
  EXPECT_THROW(run(order, {1, 2}), Error);
  EXPECT_THROW(run(order, {1, 2, 3, 3}), Error);
}

TEST(LeaseOrder, APassThatWasGivenUpLeavesNoTrace) {
  LeaseOrder order;
  order.begin();
  order.next(7);
  run(order, {1, 2});
  order.begin();
  order.next(1);
  run(order, {1, 2});
  EXPECT_EQ(order.known(), (std::vector<size_t>{1, 2}));
}

}  // namespace
}  // namespace cistron::nn
