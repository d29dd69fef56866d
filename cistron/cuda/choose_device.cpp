#include "cistron/cuda/choose_device.h"

#include "cistron/core/error.h"

namespace cistron::cuda {

namespace {

struct Obstacle {
  std::string what;  // empty: none
  std::string advice;
};

Obstacle obstacle(const CardSurvey& survey) {
  if (!survey.built) return {"this program was built without CUDA", "build it with make build-cuda, or use --device cpu"};
  if (survey.driver_version == 0)
    return {"no CUDA driver was found", "install NVIDIA's driver (in a container: --gpus all), or use --device cpu"};
  if (survey.cards.empty())
    return {"no CUDA card can be used" + (survey.problem.empty() ? "" : " (" + survey.problem + ")"),
            "see cistron doctor, or use --device cpu"};
  const Card& card = survey.cards.front();
  if (card.capability < 80)
    return {fmt::format("the {} is too old, of compute capability {}.{}", card.name, card.capability / 10, card.capability % 10),
            "8.0 or later is wanted: use --device cpu"};
  return {};
}

}  // namespace

Choice choose_device(const std::string& wanted, const CardSurvey& survey) {
  if (wanted == "cpu") return {};
  const Obstacle in_the_way = obstacle(survey);
  const Device card{DeviceKind::kCuda, 0};
  if (wanted == "cuda") {
    if (!in_the_way.what.empty()) throw Error(ErrorKind::kUsage, in_the_way.what, "--device cuda", in_the_way.advice);
    return {.device = card, .say = ""};
  }
  if (!survey.built) return {};
  if (!in_the_way.what.empty()) return {.device = {}, .say = fmt::format("device: the CPU ({})", in_the_way.what)};
  return {.device = card, .say = fmt::format("device: {}, {}", to_string(card), survey.cards.front().name)};
}

}  // namespace cistron::cuda
