#ifndef EPS_WORKER_INTERRUPT_H_
#define EPS_WORKER_INTERRUPT_H_

namespace eps {

// Handles SIGINT and SIGTERM: the first one makes Interrupted() true, the second one ends the
// process at once with exit code 130.
void HandleInterrupts();
bool Interrupted();

}  // namespace eps

#endif  // EPS_WORKER_INTERRUPT_H_
