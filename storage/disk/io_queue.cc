#include "storage/disk/io_queue.h"

#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/mutex.h"

namespace eps {
namespace {

// Linux transfers at most 2 GiB minus one page per call.
constexpr uint64_t kMaxTransfer = uint64_t{1} << 30;

const char* NameOf(IoRequest::Kind kind) {
  switch (kind) {
    case IoRequest::Kind::kRead:
      return "read";
    case IoRequest::Kind::kWrite:
      return "write";
    case IoRequest::Kind::kSync:
      return "sync";
    case IoRequest::Kind::kFail:
      break;
  }
  return "nothing";
}

class UringQueue final : public IoQueue {
 public:
  explicit UringQueue(uint32_t depth) : depth_(depth) {}

  // Returns a negative errno if the kernel refuses.
  int Open() {
    const int result = io_uring_queue_init(depth_ + 1, &ring_, 0);
    if (result == 0) thread_ = std::thread([this] { Run(); });
    return result;
  }

  ~UringQueue() override {
    if (!thread_.joinable()) return;
    {
      MutexLock lock(&mu_);
      EPS_CHECK_MSG(in_flight_ == 0 && line_.empty(), "transfers outlive their disk");
      io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
      io_uring_prep_nop(sqe);
      io_uring_sqe_set_data(sqe, nullptr);  // ends the thread
      Submit();
    }
    thread_.join();
    io_uring_queue_exit(&ring_);
  }

  void Start(std::unique_ptr<IoRequest> request) override EPS_EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    line_.push_back(std::move(request));
    Feed();
  }

 private:
  // Submits as many requests as the depth allows.
  void Feed() EPS_REQUIRES(mu_) {
    bool any = false;
    while (in_flight_ < depth_ && !line_.empty()) {
      IoRequest* const request = line_.front().release();
      line_.pop_front();
      io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
      EPS_CHECK(sqe != nullptr);
      Prepare(*request, sqe);
      io_uring_sqe_set_data(sqe, request);
      ++in_flight_;
      any = true;
    }
    if (any) Submit();
  }

  static void Prepare(const IoRequest& r, io_uring_sqe* sqe) {
    const auto size = static_cast<unsigned>(r.next_size());
    switch (r.kind) {
      case IoRequest::Kind::kRead:
        io_uring_prep_read(sqe, r.fd, r.data + r.moved, size, r.offset + r.moved);
        break;
      case IoRequest::Kind::kWrite:
        io_uring_prep_write(sqe, r.fd, r.data + r.moved, size, r.offset + r.moved);
        break;
      case IoRequest::Kind::kSync:
        io_uring_prep_fsync(sqe, r.fd, IORING_FSYNC_DATASYNC);
        break;
      case IoRequest::Kind::kFail:
        io_uring_prep_nop(sqe);
        break;
    }
  }

  void Submit() EPS_REQUIRES(mu_) {
    while (io_uring_sq_ready(&ring_) > 0) {
      const int result = io_uring_submit(&ring_);
      EPS_CHECK_MSG(result >= 0 || result == -EINTR || result == -EAGAIN || result == -EBUSY,
                    "io_uring_submit: " << std::strerror(-result));
      if (result <= 0) std::this_thread::yield();
    }
  }

  void Run() {
    for (;;) {
      io_uring_cqe* cqe = nullptr;
      const int waited = io_uring_wait_cqe(&ring_, &cqe);
      if (waited == -EINTR) continue;
      EPS_CHECK_MSG(waited == 0, "io_uring_wait_cqe: " << std::strerror(-waited));
      std::unique_ptr<IoRequest> request(static_cast<IoRequest*>(io_uring_cqe_get_data(cqe)));
      const int result = cqe->res;
      io_uring_cqe_seen(&ring_, cqe);
      if (request == nullptr) return;
      bool done = false;
      {
        MutexLock lock(&mu_);
        --in_flight_;
        done = request->Take(result);
        if (!done) line_.push_front(std::move(request));
        Feed();
      }
      if (done) request->done(std::move(request->status));
    }
  }

  const uint32_t depth_;
  io_uring ring_{};  // mu_ guards the submission side; thread_ owns the completion side
  Mutex mu_;
  std::deque<std::unique_ptr<IoRequest>> line_ EPS_GUARDED_BY(mu_);
  uint32_t in_flight_ EPS_GUARDED_BY(mu_) = 0;
  std::thread thread_;
};

class ThreadQueue final : public IoQueue {
 public:
  explicit ThreadQueue(uint32_t depth) {
    for (uint32_t i = 0; i < std::min(depth, 8u); ++i) threads_.emplace_back([this] { Run(); });
  }

  ~ThreadQueue() override {
    {
      MutexLock lock(&mu_);
      EPS_CHECK_MSG(line_.empty(), "transfers outlive their disk");
      stopping_ = true;
    }
    wake_.NotifyAll();
    for (std::thread& thread : threads_) thread.join();
  }

  void Start(std::unique_ptr<IoRequest> request) override EPS_EXCLUDES(mu_) {
    {
      MutexLock lock(&mu_);
      line_.push_back(std::move(request));
    }
    wake_.NotifyOne();
  }

 private:
  static int64_t Call(const IoRequest& r) {
    int64_t result = 0;
    const auto at = static_cast<off_t>(r.offset + r.moved);
    switch (r.kind) {
      case IoRequest::Kind::kRead:
        result = pread(r.fd, r.data + r.moved, r.next_size(), at);
        break;
      case IoRequest::Kind::kWrite:
        result = pwrite(r.fd, r.data + r.moved, r.next_size(), at);
        break;
      case IoRequest::Kind::kSync:
        result = fdatasync(r.fd);
        break;
      case IoRequest::Kind::kFail:
        break;
    }
    return result < 0 ? -errno : result;
  }

  void Run() {
    for (;;) {
      std::unique_ptr<IoRequest> request;
      {
        MutexLock lock(&mu_);
        while (line_.empty() && !stopping_) wake_.WaitFor(&mu_, std::chrono::seconds(10));
        if (line_.empty()) return;
        request = std::move(line_.front());
        line_.pop_front();
      }
      while (!request->Take(Call(*request))) {
      }
      request->done(std::move(request->status));
    }
  }

  Mutex mu_;
  CondVar wake_;
  std::deque<std::unique_ptr<IoRequest>> line_ EPS_GUARDED_BY(mu_);
  bool stopping_ EPS_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace

uint64_t IoRequest::next_size() const { return std::min(size - moved, kMaxTransfer); }

bool IoRequest::Take(int64_t result) {
  if (kind == Kind::kFail) return true;
  if (result == -EINTR || result == -EAGAIN) return false;
  if (result < 0) {
    status = absl::Status(
        result == -ENOSPC ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInternal,
        absl::StrCat(path, ": ", NameOf(kind), " of ", size, " bytes at offset ", offset, ": ",
                     std::strerror(static_cast<int>(-result)), " (errno ", -result, ")"));
    return true;
  }
  if (kind == Kind::kSync) return true;
  // A direct transfer has to continue at a block boundary, so it may move part of a block twice.
  const auto bytes = static_cast<uint64_t>(result);
  const uint64_t kept = bytes == size - moved ? bytes : bytes / kDiskBlock * kDiskBlock;
  if (kept == 0 && size > moved) {
    status = absl::InternalError(absl::StrCat(path, ": ", NameOf(kind), " of ", size,
                                              " bytes at offset ", offset, ": only ", moved + bytes,
                                              " bytes were moved"));
    return true;
  }
  moved += kept;
  return moved == size;
}

absl::StatusOr<std::unique_ptr<IoQueue>> NewUringQueue(uint32_t depth) {
  auto queue = std::make_unique<UringQueue>(depth);
  const int result = queue->Open();
  if (result == 0) return std::unique_ptr<IoQueue>(std::move(queue));
  return absl::UnavailableError(absl::StrCat("io_uring_setup: ", std::strerror(-result)));
}

std::unique_ptr<IoQueue> NewThreadQueue(uint32_t depth) {
  return std::make_unique<ThreadQueue>(depth);
}

}  // namespace eps
