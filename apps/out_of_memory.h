#pragma once

namespace cistron::apps {

/// The one line that needs no memory, on standard error; gives the exit status.
int say_out_of_memory() noexcept;

/// From here on, where memory has run out and an exception has no way out (of a destructor, or a library's thread), the program
/// ends by that line instead of an abort. What is on the disk is whole, as after any sudden end.
void end_clearly_without_memory();

}  // namespace cistron::apps
