// A library that the tsan lane (.ci/lane) preloads into tests. gRPC and Abseil are packaged
// libraries and not instrumented, so the thread sanitizer cannot see that one thread hands its data
// to another through their mutexes, completion queues and reference counts. Each function below
// forwards to theirs and tells the sanitizer of that order. Functions of C++ have the names that
// the compiler gives to them; a program without the sanitizer never calls them.

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>

extern "C" {

void __tsan_acquire(void* address);
void __tsan_release(void* address);

}  // extern "C"

namespace {

// grpc::internal::ServerReactor, by its virtual functions.
class Reactor {
 public:
  virtual ~Reactor() = default;
  virtual void OnDone() = 0;
  virtual void OnCancel() = 0;
  virtual bool InternalInlineable() = 0;
};

// Stands in for a reactor during its OnCancel, and is gone after it.
class CancelledReactor final : public Reactor {
 public:
  CancelledReactor(void* references, Reactor* reactor)
      : references_(references), reactor_(reactor) {}
  void OnDone() override {}
  void OnCancel() override {
    reactor_->OnCancel();
    __tsan_release(references_);
    delete this;
  }
  bool InternalInlineable() override { return reactor_->InternalInlineable(); }

 private:
  void* const references_;  // of the call
  Reactor* const reactor_;
};

// A call of a server counts what still refers to it: callbacks, and what will run one. The last to
// go ends the call. After OnCancel, gRPC++ drops a reference in code of its own.
void* ReferencesOf(void* call) {
  constexpr size_t kReferencesAt = 12;
  return static_cast<char*>(call) + kReferencesAt;
}

}  // namespace

extern "C" {

// The function of the same name in the library that is searched after this one.
#define EPS_FORWARD_AS(name, type) \
  static const auto forward = reinterpret_cast<type>(dlsym(RTLD_NEXT, name))
#define EPS_FORWARD_TO(type) EPS_FORWARD_AS(__func__, type)

// absl::Mutex::Lock()
void _ZN4absl7debian35Mutex4LockEv(void* mutex) {
  EPS_FORWARD_TO(void (*)(void*));
  forward(mutex);
  __tsan_acquire(mutex);
}

// absl::Mutex::Unlock()
void _ZN4absl7debian35Mutex6UnlockEv(void* mutex) {
  EPS_FORWARD_TO(void (*)(void*));
  __tsan_release(mutex);
  forward(mutex);
}

// absl::Mutex::TryLock()
bool _ZN4absl7debian35Mutex7TryLockEv(void* mutex) {
  EPS_FORWARD_TO(bool (*)(void*));
  const bool locked = forward(mutex);
  if (locked) __tsan_acquire(mutex);
  return locked;
}

// absl::CondVar::Wait(Mutex*)
void _ZN4absl7debian37CondVar4WaitEPNS0_5MutexE(void* condition, void* mutex) {
  EPS_FORWARD_TO(void (*)(void*, void*));
  __tsan_release(mutex);
  forward(condition, mutex);
  __tsan_acquire(mutex);
}

// absl::CondVar::WaitWithTimeout(Mutex*, Duration); a Duration travels in two registers.
bool _ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE(void* condition,
                                                                          void* mutex, int64_t high,
                                                                          uint64_t low) {
  EPS_FORWARD_TO(bool (*)(void*, void*, int64_t, uint64_t));
  __tsan_release(mutex);
  const bool timed_out = forward(condition, mutex, high, low);
  __tsan_acquire(mutex);
  return timed_out;
}

// absl::CondVar::WaitWithDeadline(Mutex*, Time)
bool _ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE(void* condition, void* mutex,
                                                                       int64_t high, uint64_t low) {
  EPS_FORWARD_TO(bool (*)(void*, void*, int64_t, uint64_t));
  __tsan_release(mutex);
  const bool timed_out = forward(condition, mutex, high, low);
  __tsan_acquire(mutex);
  return timed_out;
}

// The functions below pass work from the thread that starts it to the one that runs its callback:
// operations start with a tag, end on a queue with the same tag, and the queue yields the tag. The
// queue itself takes no lock.

// Starts operations of a call.
int grpc_call_start_batch(void* call, const void* ops, size_t count, void* tag, void* reserved) {
  EPS_FORWARD_TO(int (*)(void*, const void*, size_t, void*, void*));
  __tsan_release(tag);
  return forward(call, ops, count, tag, reserved);
}

// grpc_cq_end_op(grpc_completion_queue*, void* tag, absl::Status, done, done_arg, storage, bool):
// operations have ended. The status travels by reference.
#define EPS_END_OP                                                    \
  "_Z14grpc_cq_end_opP21grpc_completion_queuePvN4absl7debian36Status" \
  "EPFvS1_P18grpc_cq_completionES1_S6_b"
void EndOp(void* queue, void* tag, void* error, void* done, void* done_argument, void* storage,
           bool internal) __asm__(EPS_END_OP);
void EndOp(void* queue, void* tag, void* error, void* done, void* done_argument, void* storage,
           bool internal) {
  EPS_FORWARD_AS(EPS_END_OP, void (*)(void*, void*, void*, void*, void*, void*, bool));
  __tsan_release(tag);
  forward(queue, tag, error, done, done_argument, storage, internal);
}

// An event of a queue, in two registers.
struct Event {
  int type;  // 2 if `tag` is set
  int success;
  void* tag;
};

// Yields the next event; the time travels in two registers.
Event grpc_completion_queue_next(void* queue, int64_t seconds, int64_t rest, void* reserved) {
  EPS_FORWARD_TO(Event(*)(void*, int64_t, int64_t, void*));
  const Event event = forward(queue, seconds, rest, reserved);
  if (event.type == 2) __tsan_acquire(event.tag);
  return event;
}

// Yields the event with a tag.
Event grpc_completion_queue_pluck(void* queue, void* tag, int64_t seconds, int64_t rest,
                                  void* reserved) {
  EPS_FORWARD_TO(Event(*)(void*, void*, int64_t, int64_t, void*));
  const Event event = forward(queue, tag, seconds, rest, reserved);
  if (event.type == 2) __tsan_acquire(event.tag);
  return event;
}

// grpc::internal::ServerCallbackCall::ScheduleOnDone(bool): the last reference is gone.
void _ZN4grpc8internal18ServerCallbackCall14ScheduleOnDoneEb(void* call, bool is_inline) {
  EPS_FORWARD_TO(void (*)(void*, bool));
  __tsan_acquire(ReferencesOf(call));
  forward(call, is_inline);
}

// grpc::internal::ServerCallbackCall::CallOnCancel(ServerReactor*): the reactor's OnCancel runs
// here or on another thread, and then a reference is dropped.
void _ZN4grpc8internal18ServerCallbackCall12CallOnCancelEPNS0_13ServerReactorE(void* call,
                                                                               Reactor* reactor) {
  EPS_FORWARD_TO(void (*)(void*, Reactor*));
  forward(call, new CancelledReactor(ReferencesOf(call), reactor));
}

}  // extern "C"
