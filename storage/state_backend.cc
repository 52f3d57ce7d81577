#include "storage/state_backend.h"

#include "base/check.h"

namespace eps {
namespace {

void NotDurable() { EPS_CHECK_MSG(false, "this state backend keeps nothing on disk"); }

}  // namespace

void StateBackend::Cut(OpId, CutRequest) { NotDurable(); }
void StateBackend::Recycle(CutId) { NotDurable(); }
void StateBackend::Quiesce(OpId) { NotDurable(); }
void StateBackend::Recover(OpId) { NotDurable(); }
void StateBackend::Scrub(OpId) { NotDurable(); }
void StateBackend::Restore(OpId, std::optional<CutId>, Term) { NotDurable(); }
void StateBackend::Promise(OpId, Term) { NotDurable(); }
void StateBackend::StartLog(OpId, const FoundLog&) { NotDurable(); }
void StateBackend::Log(OpId, LogEntry) { NotDurable(); }
void StateBackend::ReadLog(OpId) { NotDurable(); }

}  // namespace eps
