#ifndef EPS_SERVER_SHELL_STREAM_SINK_H_
#define EPS_SERVER_SHELL_STREAM_SINK_H_

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/check.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "eps_server/core/shard_core.h"

namespace eps {

// Receives the core's effects on one RPC. The adapters in eps_server/rpc override the methods that
// suit their kind of RPC; a call of any other is a broken invariant of the core. All calls come
// from the job's sequence, one at a time, and must not block. They have no effect after the RPC has
// ended.
class StreamSink {
 public:
  virtual ~StreamSink() = default;
  virtual void OnClose(const absl::Status& status) = 0;
  virtual void OnReply(const effect::ReplyMessage&) { Unexpected("Reply"); }
  virtual void OnSendChunk(const effect::SendChunk&) { Unexpected("SendChunk"); }
  virtual void OnFailFetch(const effect::FailFetch&) { Unexpected("FailFetch"); }
  virtual void OnCredit(uint64_t /*tag*/) { Unexpected("Credit"); }
  virtual void OnAck(uint64_t /*tag*/, const v1::Ack&) { Unexpected("SendAck"); }
  virtual void OnSendState(const effect::SendState&) { Unexpected("SendState"); }
  // The backend has written an imported chunk, the core has refused it, or the core has handled an
  // imported residual: the stream may receive the next one.
  virtual void OnImportTaken() {}

 private:
  static void Unexpected(const char* effect) {
    EPS_CHECK_MSG(false, "effect " << effect << " for an RPC of another kind");
  }
};

// Maps a StreamId to its RPC without keeping the RPC alive. Thread-safe.
class StreamRegistry {
 public:
  StreamId Add(std::weak_ptr<StreamSink> sink) {
    MutexLock lock(&mu_);
    const StreamId id(next_++);
    sinks_.emplace(id, std::move(sink));
    return id;
  }
  void Remove(StreamId id) {
    MutexLock lock(&mu_);
    sinks_.erase(id);
  }
  // Returns null if the RPC is gone.
  std::shared_ptr<StreamSink> Find(StreamId id) {
    MutexLock lock(&mu_);
    const auto it = sinks_.find(id);
    return it == sinks_.end() ? nullptr : it->second.lock();
  }
  // Returns the RPCs that are registered and alive.
  std::vector<std::shared_ptr<StreamSink>> All() {
    std::vector<std::shared_ptr<StreamSink>> all;
    MutexLock lock(&mu_);
    for (const auto& [id, weak] : sinks_) {
      if (auto sink = weak.lock()) all.push_back(std::move(sink));
    }
    return all;
  }
  size_t size() {
    MutexLock lock(&mu_);
    return sinks_.size();
  }
  // Records that the job closes its RPCs. Those that are added later must be closed, too.
  void Close(const absl::Status& why) {
    MutexLock lock(&mu_);
    closed_ = why;
  }
  // Returns the argument of Close; OK before it.
  absl::Status closed() {
    MutexLock lock(&mu_);
    return closed_;
  }

 private:
  Mutex mu_;
  uint64_t next_ EPS_GUARDED_BY(mu_) = 1;
  absl::Status closed_ EPS_GUARDED_BY(mu_);
  std::map<StreamId, std::weak_ptr<StreamSink>> sinks_ EPS_GUARDED_BY(mu_);
};

}  // namespace eps

#endif  // EPS_SERVER_SHELL_STREAM_SINK_H_
