// FASTA and FASTQ, as they are.
#include "tests/fuzz/sequences.h"

using namespace cistron;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::Folder folder;
  (void)fuzz::read_records(folder.write("a.fasta", fuzz::text_of(data, size)));
  return 0;
}
