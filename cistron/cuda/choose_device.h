#pragma once
// Which device a verb runs on.
#include <string>

#include "cistron/core/device.h"
#include "cistron/cuda/doctor.h"

namespace cistron::cuda {

struct Choice {
  Device device;
  std::string say;  ///< one line on what was chosen and why; empty where there was no choice
};

/// What "auto", "cpu" or "cuda" means on a machine with these cards: auto takes the first card where the program, the driver and
/// the card allow it. Throws Error(kUsage) where cuda is asked for and cannot be had: not built, no driver, no card, a card too
/// old. A pure function.
Choice choose_device(const std::string& wanted, const CardSurvey& survey);

}  // namespace cistron::cuda
