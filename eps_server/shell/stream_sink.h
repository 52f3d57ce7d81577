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

// One RPC as the core's effects see it. The adapters in eps_server/rpc implement what their RPC
// can be told; anything else is a broken invariant of the core. Calls come from the job's sequence
// one at a time and may not block. After the RPC has ended they do nothing.
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
  // An imported chunk is with the backend, or was refused: its memory is free for the next one.
  virtual void OnImportTaken() {}

 private:
  static void Unexpected(const char* effect) {
    EPS_CHECK_MSG(false, "effect " << effect << " for an RPC of another kind");
  }
};

// Which RPC a StreamId names. Thread-safe. Does not keep an RPC alive.
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
  // Null if the RPC is gone.
  std::shared_ptr<StreamSink> Find(StreamId id) {
    MutexLock lock(&mu_);
    const auto it = sinks_.find(id);
    return it == sinks_.end() ? nullptr : it->second.lock();
  }
  // All RPCs that are there now.
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

 private:
  Mutex mu_;
  uint64_t next_ EPS_GUARDED_BY(mu_) = 1;
  std::map<StreamId, std::weak_ptr<StreamSink>> sinks_ EPS_GUARDED_BY(mu_);
};

}  // namespace eps

#endif  // EPS_SERVER_SHELL_STREAM_SINK_H_
