// Ctrl-C. The first one is noticed at the next step of the work, which unwinds and so removes its
// temporary files; the second one ends the process at once.
#pragma once

namespace twell::measure {

struct Interrupted {};

void install_interrupt_handler();
bool interrupted() noexcept;
// To wait for either with poll(): readable from the first signal on, whenever it comes.
int interrupt_descriptor() noexcept;
// Throws Interrupted after Ctrl-C or SIGTERM.
void check_interrupt();
// Work that was to stop has stopped, and the program goes on; not after SIGTERM.
void forget_interrupt() noexcept;

}  // namespace twell::measure
