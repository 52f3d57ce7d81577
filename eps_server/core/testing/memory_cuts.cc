#include "eps_server/core/testing/memory_cuts.h"

#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "storage/backends/dram_backend.h"

namespace eps {
namespace {

constexpr uint64_t kOwnOps = uint64_t{1} << 61;  // far from the op ids of the caller
constexpr int kDiskDelay = 12;

}  // namespace

class MemoryCutsBackend final : public StateBackend {
 public:
  MemoryCutsBackend(MemoryCuts* disk, std::vector<ChunkId> owned, Executor* executor,
                    BackendDoneFn done)
      : disk_(disk),
        process_(disk->process_),
        owned_(std::move(owned)),
        executor_(executor),
        done_(std::move(done)) {}

  void set_dram(std::unique_ptr<StateBackend> dram) { dram_ = std::move(dram); }

  Caps caps() const override {
    Caps caps = dram_->caps();
    caps.durable = true;
    return caps;
  }
  void Submit(OpId op, Request request) override {
    if (std::holds_alternative<ChunkRequest>(request)) {
      ++pending_;
      return dram_->Submit(op, std::move(request));
    }
    std::visit([this, op](auto& r) { Do(op, std::move(r)); }, std::get<DurableRequest>(request));
  }
  void Recycle(CutId oldest_kept) override {
    if (process_ != disk_->process_) return;
    EPS_CHECK_MSG(disk_->cuts.count(oldest_kept) > 0, "the oldest cut to keep is not here");
    disk_->cuts.erase(disk_->cuts.begin(), disk_->cuts.find(oldest_kept));
  }

  // Called for each operation that the DRAM backend completes.
  void OnDone(BackendDone done) {
    const auto it = own_.find(done.op.value());
    if (it != own_.end()) {
      const std::function<void(BackendDone)> then = std::move(it->second);
      own_.erase(it);
      return then(std::move(done));
    }
    --pending_;
    done_(std::move(done));
  }

 private:
  // ---- Operations, by request.
  void Do(OpId op, CutRequest request) {
    auto cut = std::make_shared<MemoryCuts::Cut>();
    cut->border = request.border;
    cut->content = std::move(request.content);
    for (CutResidual& residual : cut->content.residuals) {
      residual.bytes = Bytes::CopyOf(residual.bytes.view());
    }
    Gather(
        op,
        [this, op, cut](const std::map<ChunkId, Bytes>& chunks) {
          cut->chunks = chunks;
          if (process_ == disk_->process_) {
            std::vector<std::string> records;
            if (!disk_->cuts.empty()) {
              EPS_CHECK(disk_->cuts.rbegin()->first < cut->border.id);
              records = disk_->cuts.rbegin()->second.content.records;
            }
            for (std::string& record : cut->content.records) records.push_back(std::move(record));
            cut->content.records = std::move(records);
            disk_->cuts.emplace(cut->border.id, *cut);
          }
          Finish(op, BackendValue());
        },
        cut->border.version);
  }
  void Do(OpId op, QuiesceRequest request) {
    executor_->Post([this, op, request] {
      if (pending_ > 0) return Do(op, request);
      done_(BackendDone{op, absl::OkStatus(), BackendValue()});
    });
  }
  void Do(OpId op, RecoverRequest) {
    executor_->Post([this, op] {
      auto state = std::make_shared<RecoveredState>();
      state->promised = disk_->promised;
      for (const auto& [id, cut] : disk_->cuts) state->cuts.push_back(cut.border);
      done_(BackendDone{op, absl::OkStatus(), std::shared_ptr<const RecoveredState>(state)});
    });
  }
  void Do(OpId op, PromiseRequest request) {
    executor_->Post([this, op, term = request.term] {
      absl::Status status;
      if (term < disk_->promised) {
        status = absl::FailedPreconditionError("a later term was promised");
      } else if (process_ == disk_->process_) {
        disk_->promised = term;
      }
      done_(BackendDone{op, status, BackendValue()});
    });
  }
  void Do(OpId op, RestoreRequest request) {
    executor_->Post([this, op, base = request.base, term = request.term] {
      if (process_ != disk_->process_) return;
      EPS_CHECK(pending_ == 0 && disk_->promised == term);
      if (!base.has_value()) {
        disk_->cuts.clear();
        done_(BackendDone{op, absl::OkStatus(), std::make_shared<const CutContent>()});
        return;
      }
      const auto it = disk_->cuts.find(*base);
      EPS_CHECK(it != disk_->cuts.end());
      disk_->cuts.erase(std::next(it), disk_->cuts.end());
      auto left = std::make_shared<size_t>(owned_.size());
      auto content = std::make_shared<const CutContent>(it->second.content);
      for (ChunkId chunk : owned_) {
        const OpId own = NewOwn([this, op, left, content](BackendDone done) {
          EPS_CHECK(done.status.ok());
          if (--*left == 0) done_(BackendDone{op, absl::OkStatus(), content});
        });
        dram_->Submit(
            own, WriteStateRequest{chunk, it->second.border.version, it->second.chunks.at(chunk)});
      }
    });
  }
  // Scrubs and logs.
  template <class Other>
  void Do(OpId, const Other&) {
    EPS_CHECK_MSG(false, "cuts in memory are not scrubbed and have no log");
  }

  OpId NewOwn(std::function<void(BackendDone)> then) {
    const uint64_t id = kOwnOps + next_own_++;
    own_[id] = std::move(then);
    return OpId(id);
  }
  void Finish(OpId op, BackendValue value) {
    --pending_;
    done_(BackendDone{op, absl::OkStatus(), std::move(value)});
  }
  // Reads all chunks in call order and, after a delay, calls `then`.
  void Gather(OpId op, std::function<void(const std::map<ChunkId, Bytes>&)> then, Version version) {
    ++pending_;
    auto chunks = std::make_shared<std::map<ChunkId, Bytes>>();
    auto later = std::make_shared<std::function<void(const std::map<ChunkId, Bytes>&)>>(then);
    for (ChunkId chunk : owned_) {
      const OpId own = NewOwn([this, chunk, chunks, later, op](BackendDone done) {
        EPS_CHECK_MSG(done.status.ok(), op << ": " << done.status.ToString());
        // Copies, because durable bytes are charged to no account of the process.
        (*chunks)[chunk] = Bytes::CopyOf(std::get<Bytes>(done.value).view());
        if (chunks->size() == owned_.size()) {
          Slowly(kDiskDelay, [chunks, later] { (*later)(*chunks); });
        }
      });
      dram_->Submit(own, ReadStateRequest{chunk, version});
    }
  }

  // A disk is slow: lets other tasks run for some turns before `then`.
  void Slowly(int turns, std::function<void()> then) {
    executor_->Post([this, turns, then = std::move(then)] {
      if (turns == 0) return then();
      Slowly(turns - 1, then);
    });
  }

  MemoryCuts* const disk_;
  const uint64_t process_;
  const std::vector<ChunkId> owned_;
  Executor* const executor_;
  const BackendDoneFn done_;
  size_t pending_ = 0;
  uint64_t next_own_ = 0;
  std::map<uint64_t, std::function<void(BackendDone)>> own_;
  std::unique_ptr<StateBackend> dram_;
};

std::unique_ptr<StateBackend> MemoryCuts::Open(const JobSpec& spec, const ChunkMap& chunks,
                                               std::vector<ChunkId> owned, Executor* executor,
                                               MemoryAccount* account, BackendDoneFn done) {
  auto backend = std::make_unique<MemoryCutsBackend>(this, owned, executor, std::move(done));
  auto dram = NewDramBackend(
      spec, chunks, owned, executor, account,
      [backend = backend.get()](BackendDone done) { backend->OnDone(std::move(done)); });
  EPS_CHECK_MSG(dram.ok(), dram.status().ToString());
  backend->set_dram(*std::move(dram));
  return backend;
}

}  // namespace eps
