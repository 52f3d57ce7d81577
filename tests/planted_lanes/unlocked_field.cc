// Planted: reads a field without the mutex that guards it. The asan lane, which compiles with
// clang's analysis of locks, must refuse to build it.

#include "base/mutex.h"

namespace eps {

class Counter {
 public:
  int Value() { return value_; }

 private:
  Mutex mu_;
  int value_ EPS_GUARDED_BY(mu_) = 0;
};

int ReadWithoutLock(Counter* counter) { return counter->Value(); }

}  // namespace eps
