#pragma once
#include <cmath>

#include "cistron/cpu/ref/matrix.h"

namespace cistron::cpu::ref {

/// Softmax of each row of the logits.
template <class S>
Matrix<S> router_probs(const Matrix<S>& logits, std::vector<S>* lse = nullptr) {
  Matrix<S> probs(logits.rows, logits.cols);
  for (int64_t t = 0; t < logits.rows; ++t) {
    S largest = logits(t, 0);
    for (int64_t e = 1; e < logits.cols; ++e) largest = logits(t, e) > largest ? logits(t, e) : largest;
    S sum = 0;
    for (int64_t e = 0; e < logits.cols; ++e) sum += std::exp(logits(t, e) - largest);
    for (int64_t e = 0; e < logits.cols; ++e) probs(t, e) = std::exp(logits(t, e) - largest) / sum;
    if (lse != nullptr) lse->push_back(largest + std::log(sum));
  }
  return probs;
}

/// The k largest of each row, largest first, ties to the lowest expert: an expert's place is the number of those ahead of it.
template <class S>
Matrix<int32_t> top_k(const Matrix<S>& probs, int64_t k) {
  Matrix<int32_t> experts(probs.rows, k);
  for (int64_t t = 0; t < probs.rows; ++t)
    for (int64_t e = 0; e < probs.cols; ++e) {
      int64_t ahead = 0;
      for (int64_t o = 0; o < probs.cols; ++o)
        if (probs(t, o) > probs(t, e) || (probs(t, o) == probs(t, e) && o < e)) ++ahead;
      if (ahead < k) experts(t, ahead) = static_cast<int32_t>(e);
    }
  return experts;
}

template <class S>
Matrix<S> routing_weights(const Matrix<S>& probs, const Matrix<int32_t>& experts) {
  Matrix<S> weights(experts.rows, experts.cols);
  for (int64_t t = 0; t < experts.rows; ++t) {
    S sum = 0;
    for (int64_t j = 0; j < experts.cols; ++j) sum += probs(t, experts(t, j));
    for (int64_t j = 0; j < experts.cols; ++j) weights(t, j) = probs(t, experts(t, j)) / sum;
  }
  return weights;
}

/// The auxiliary losses with their coefficients. `choices` [E] counts the choices of a batch of `routings`; it is a constant.
template <class S>
struct RouterLosses {
  std::vector<S> choices;
  S routings;
  S aux_coefficient;
  S z_coefficient;

  S operator()(const Matrix<S>& probs, const std::vector<S>& lse) const {
    S loss = 0;
    for (int64_t t = 0; t < probs.rows; ++t) {
      for (int64_t e = 0; e < probs.cols; ++e)
        loss += aux_coefficient * S(probs.cols) * (choices[static_cast<size_t>(e)] / routings) * (probs(t, e) / routings);
      loss += z_coefficient * lse[static_cast<size_t>(t)] * lse[static_cast<size_t>(t)] / routings;
    }
    return loss;
  }
};

/// The gradient of sum(dweights weights) + losses, by the chain rule through weights, softmax and logsumexp.
template <class S>
Matrix<S> router_backward(const Matrix<S>& logits, const Matrix<int32_t>& experts, const Matrix<S>& dweights,
                          const RouterLosses<S>& losses) {
  std::vector<S> lse;
  const Matrix<S> probs = router_probs(logits, &lse);
  Matrix<S> dlogits(probs.rows, probs.cols);
  for (int64_t t = 0; t < probs.rows; ++t) {
    std::vector<S> dprobs;
    for (S choices : losses.choices)
      dprobs.push_back(losses.aux_coefficient * S(probs.cols) * choices / (losses.routings * losses.routings));
    S sum = 0;  // of the chosen probabilities: weight_j = p_j / sum
    for (int64_t j = 0; j < experts.cols; ++j) sum += probs(t, experts(t, j));
    for (int64_t j = 0; j < experts.cols; ++j)
      for (int64_t i = 0; i < experts.cols; ++i)
        dprobs[static_cast<size_t>(experts(t, i))] +=
            dweights(t, j) * ((i == j ? sum : S(0)) - probs(t, experts(t, j))) / (sum * sum);
    const S dlse = S(2) * losses.z_coefficient * lse[static_cast<size_t>(t)] / losses.routings;
    for (int64_t e = 0; e < probs.cols; ++e) {
      dlogits(t, e) = dlse * probs(t, e);
      for (int64_t o = 0; o < probs.cols; ++o)
        dlogits(t, e) += dprobs[static_cast<size_t>(o)] * probs(t, o) * ((o == e ? S(1) : S(0)) - probs(t, e));
    }
  }
  return dlogits;
}

}  // namespace cistron::cpu::ref
