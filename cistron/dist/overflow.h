#pragma once
#include "cistron/core/error.h"

namespace cistron::dist {

/// More was routed to an expert-parallel rank than there is room for. Every rank of the world throws it, at the same exchange and
/// with the same numbers, and all communicators can be used on: plan again with more headroom and repeat the step.
class Overflow : public Error {
 public:
  /// `enough`: the headroom that would have sufficed here.
  Overflow(double headroom, double enough)
      : Error(ErrorKind::kOutOfSpace,
              fmt::format("an expert-parallel rank is sent {:.2f} times the mean, there is room for {:.2f} times", enough,
                          headroom),
              "the exchange of tokens", "raise parallel.headroom"),
        enough_(enough) {}
  [[nodiscard]] double enough() const { return enough_; }

 private:
  double enough_;
};

}  // namespace cistron::dist
