#pragma once
// What `cistron doctor` reports: what this machine has, what will be used of it, what is missing and how to get it. CUDA-free:
// the survey of the cards comes from the CUDA runtime, or from a stand-in where cistron was built without it.
#include <cstdint>
#include <string>
#include <vector>

namespace cistron::cuda {

struct Card {
  std::string name;
  int capability = 0;  ///< 10 x major + minor
  int multiprocessors = 0;
  int64_t memory_bytes = 0;
  int64_t free_bytes = 0;
};

/// A library of NVIDIA's that is used where it is found at run time.
struct OptionalLibrary {
  std::string name;
  std::string found_for;  ///< what it is used for
  std::string instead;    ///< what is used without it
  std::string problem;    ///< the loader's words; empty where it is found
};

struct CardSurvey {
  bool built = false;       ///< this program has CUDA kernels
  int driver_version = 0;   ///< the CUDA version that the driver supports, 1000 x major + 10 x minor; 0: no driver
  int runtime_version = 0;  ///< that this program was built with
  std::string problem;      ///< why no card can be used, in the CUDA runtime's words; empty where one can
  std::vector<Card> cards;
  std::vector<OptionalLibrary> libraries;
};

/// Never throws: what does not work is what it is asked for.
CardSurvey survey_cards();

enum class Verdict : uint8_t { kGood, kNote, kMissing };

struct Finding {
  Verdict verdict = Verdict::kGood;
  std::string what;    ///< "card 0"
  std::string found;   ///< "NVIDIA H200, compute capability 9.0, 132 multiprocessors, 139 of 141 GiB free"
  std::string advice;  ///< what will be used, or what to do
};

/// Findings about cards; a pure function.
std::vector<Finding> examine(const CardSurvey& survey);

/// Findings about this machine: processor, memory, cards.
std::vector<Finding> doctor();

/// One line each, aligned.
std::string to_text(const std::vector<Finding>& findings);

}  // namespace cistron::cuda
