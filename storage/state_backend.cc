#include "storage/state_backend.h"

#include <utility>

#include "base/check.h"

namespace eps {

void StateBackend::Submit(OpId, Request) {
  EPS_CHECK_MSG(false, "this state backend lacks an operation that it was asked for");
}
void StateBackend::Recycle(CutId) {
  EPS_CHECK_MSG(false, "this state backend keeps nothing on disk");
}

void StateBackend::Read(OpId op, ChunkId chunk, Version version, const Codec* codec, Axis axis) {
  Submit(op, ReadRequest{chunk, version, codec, axis});
}
void StateBackend::ReadState(OpId op, ChunkId chunk, Version version) {
  Submit(op, ReadStateRequest{chunk, version});
}
void StateBackend::WriteState(OpId op, ChunkId chunk, Version version, Bytes state) {
  Submit(op, WriteStateRequest{chunk, version, std::move(state)});
}
void StateBackend::Initialize(OpId op, ChunkId chunk) { Submit(op, InitializeRequest{chunk}); }
void StateBackend::Stats(OpId op, UpdateRequest request) {
  Submit(op, StatsRequest{std::move(request)});
}
void StateBackend::Update(OpId op, UpdateRequest request) { Submit(op, std::move(request)); }

void StateBackend::Cut(OpId op, CutRequest cut) { Submit(op, std::move(cut)); }
void StateBackend::Quiesce(OpId op) { Submit(op, QuiesceRequest()); }
void StateBackend::Recover(OpId op) { Submit(op, RecoverRequest()); }
void StateBackend::Restore(OpId op, std::optional<CutId> base, Term term) {
  Submit(op, RestoreRequest{base, term});
}
void StateBackend::Promise(OpId op, Term term) { Submit(op, PromiseRequest{term}); }
void StateBackend::Scrub(OpId op) { Submit(op, ScrubRequest()); }
void StateBackend::StartLog(OpId op, const FoundLog& log) { Submit(op, StartLogRequest{log}); }
void StateBackend::Log(OpId op, LogEntry entry) { Submit(op, LogRequest{std::move(entry)}); }
void StateBackend::ReadLog(OpId op) { Submit(op, ReadLogRequest()); }

}  // namespace eps
