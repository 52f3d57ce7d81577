#ifndef EPS_WIRE_SECURITY_RELOADED_H_
#define EPS_WIRE_SECURITY_RELOADED_H_

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/files/files.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/status_macros.h"

namespace eps {

// The content of a small file, as it was at most `period` ago: secrets are replaced while processes
// run. Thread-safe; Get reads the file from time to time.
template <class Value>
class Reloaded {
 public:
  using Parse = std::function<absl::StatusOr<Value>(const std::string& text)>;
  static constexpr std::chrono::milliseconds kPeriod{10'000};
  static constexpr std::chrono::milliseconds kSoon{100};

  // Reads the file. Errors of ReadTextFile and of `parse`.
  static absl::StatusOr<std::shared_ptr<Reloaded>> Open(
      std::string path, Parse parse, std::chrono::milliseconds period = kPeriod) {
    std::shared_ptr<Reloaded> file(new Reloaded(std::move(path), std::move(parse), period));
    MutexLock lock(&file->mu_);
    EPS_ASSIGN_OR_RETURN(file->value_, file->Read());
    return file;
  }

  // Returns the value. A file that has become unreadable is logged, and leaves the old one.
  std::shared_ptr<const Value> Get() { return Get(period_); }
  // The same for a caller whom the last value does not satisfy: it is at most kSoon old.
  std::shared_ptr<const Value> GetNewest() { return Get(std::min(period_, kSoon)); }

 private:
  std::shared_ptr<const Value> Get(std::chrono::milliseconds age) EPS_EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    if (std::chrono::steady_clock::now() - read_ < age) return value_;
    absl::StatusOr<std::shared_ptr<const Value>> fresh = Read();
    if (fresh.ok()) {
      value_ = *std::move(fresh);
    } else {
      EPS_LOG_WARN("the earlier content stays in use: " << fresh.status().ToString());
    }
    return value_;
  }

  Reloaded(std::string path, Parse parse, std::chrono::milliseconds period)
      : path_(std::move(path)), parse_(std::move(parse)), period_(period) {}

  absl::StatusOr<std::shared_ptr<const Value>> Read() EPS_REQUIRES(mu_) {
    read_ = std::chrono::steady_clock::now();
    EPS_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path_));
    absl::StatusOr<Value> value = parse_(text);
    if (value.ok()) return std::make_shared<const Value>(*std::move(value));
    return absl::Status(value.status().code(),
                        path_ + ": " + std::string(value.status().message()));
  }

  const std::string path_;
  const Parse parse_;
  const std::chrono::milliseconds period_;
  Mutex mu_;
  std::chrono::steady_clock::time_point read_ EPS_GUARDED_BY(mu_);
  std::shared_ptr<const Value> value_ EPS_GUARDED_BY(mu_);
};

}  // namespace eps

#endif  // EPS_WIRE_SECURITY_RELOADED_H_
