#pragma once
// A tokenizer as Hugging Face's files, so that AutoTokenizer gives the same ids offline.
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "cistron/data/tokenizer.h"

namespace cistron::data {

/// File name to JSON text: tokenizer.json (a token a character, with begin and end added) and tokenizer_config.json. Characters
/// that ours refuses become the unknown token there.
std::map<std::string, std::string> tokenizer_files(const Tokenizer& tokenizer, int64_t context);

/// The name that `tokenizer_files` left in a directory's tokenizer_config.json; empty where there is none.
std::string tokenizer_of_directory(const std::filesystem::path& directory);

}  // namespace cistron::data
