#pragma once

namespace cistron::apps {

/// From here on the end of the processor's time (ulimit -t) is one line and exit status 1, or, under an InterruptGuard, a signal
/// like others. Where soft and hard limit are one, which kills without a word, the warning comes a tenth of it before, of 1 to 60
/// seconds.
void say_when_time_is_up();

}  // namespace cistron::apps
