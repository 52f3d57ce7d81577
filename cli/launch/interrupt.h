#ifndef EPS_CLI_LAUNCH_INTERRUPT_H_
#define EPS_CLI_LAUNCH_INTERRUPT_H_

namespace eps {

// Handles SIGINT and SIGTERM. In graceful mode the first signal only makes Interrupted() true; any
// other signal kills the children and exits with code 130. Process-wide; call HandleInterrupts
// once. All functions are thread-safe.
void HandleInterrupts();
void SetGraceful(bool graceful);
bool Interrupted();

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_INTERRUPT_H_
