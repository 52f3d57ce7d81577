#include "eps_server/core/replay/output_commit.h"

namespace eps {
namespace {

// True for the effects that leave the process and may follow from logged entries.
struct TellsOthers {
  bool operator()(const effect::Reply&) const { return true; }
  bool operator()(const effect::Close&) const { return true; }
  bool operator()(const effect::SendChunk&) const { return true; }
  bool operator()(const effect::FailFetch&) const { return true; }
  bool operator()(const effect::SendAck&) const { return true; }
  bool operator()(const effect::SendState&) const { return true; }
  bool operator()(const effect::ToShard&) const { return true; }
  template <class Other>
  bool operator()(const Other&) const {
    return false;
  }
};

}  // namespace

bool OutputCommit::Tells(const Effect& effect) { return std::visit(TellsOthers(), effect); }

}  // namespace eps
