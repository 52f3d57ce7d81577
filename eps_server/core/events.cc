#include "eps_server/core/events.h"

namespace eps {
namespace {

// Makes each kind of call on the backend, under one op id.
struct Caller {
  StateBackend* backend;
  OpId op;

  void operator()(const backend_call::Read& c) const {
    backend->Read(op, c.chunk, c.version, c.codec, c.axis);
  }
  void operator()(const backend_call::ReadState& c) const {
    backend->ReadState(op, c.chunk, c.version);
  }
  void operator()(const backend_call::WriteState& c) const {
    backend->WriteState(op, c.chunk, c.version, c.state);
  }
  void operator()(const backend_call::Initialize& c) const { backend->Initialize(op, c.chunk); }
  void operator()(const backend_call::Stats& c) const { backend->Stats(op, c.request); }
  void operator()(const backend_call::Update& c) const { backend->Update(op, c.request); }
  void operator()(const backend_call::Cut& c) const { backend->Cut(op, c.request); }
  void operator()(const backend_call::Recycle& c) const { backend->Recycle(c.oldest_kept); }
  void operator()(const backend_call::Quiesce&) const { backend->Quiesce(op); }
  void operator()(const backend_call::Recover&) const { backend->Recover(op); }
  void operator()(const backend_call::Restore& c) const { backend->Restore(op, c.base, c.term); }
  void operator()(const backend_call::Promise& c) const { backend->Promise(op, c.term); }
  void operator()(const backend_call::Scrub&) const { backend->Scrub(op); }
  void operator()(const backend_call::StartLog& c) const { backend->StartLog(op, c.log); }
  void operator()(const backend_call::Log& c) const { backend->Log(op, c.entry); }
  void operator()(const backend_call::ReadLog&) const { backend->ReadLog(op); }
};

}  // namespace

void Call(StateBackend* backend, OpId op, const BackendCall& call) {
  std::visit(Caller{backend, op}, call);
}

}  // namespace eps
