#include "eps_server/core/replay/output_commit.h"

#include <cstdint>
#include <optional>
#include <set>

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

// A request that an effect answers: a whole RPC, or one fetch of a stream. Elements of a stream of
// replies and acks answer nothing here: the desks end their streams with the term.
struct Answered {
  StreamId stream;
  std::optional<uint64_t> tag;  // of a fetch
};

struct FindAnswered {
  std::optional<Answered> operator()(const effect::Close& e) const {
    return Answered{e.stream, std::nullopt};
  }
  std::optional<Answered> operator()(const effect::Reply& e) const {
    const bool is_element = std::holds_alternative<effect::SharedRecord>(e.message) ||
                            std::holds_alternative<v1::Notice>(e.message);
    if (is_element) return std::nullopt;
    return Answered{e.stream, std::nullopt};
  }
  std::optional<Answered> operator()(const effect::SendChunk& e) const {
    return Answered{e.stream, e.tag};
  }
  std::optional<Answered> operator()(const effect::FailFetch& e) const {
    return Answered{e.stream, e.tag};
  }
  template <class Other>
  std::optional<Answered> operator()(const Other&) const {
    return std::nullopt;
  }
};

}  // namespace

void OutputCommit::Drop(const absl::Status& over, std::vector<Effect>* out) {
  std::set<std::pair<StreamId, std::optional<uint64_t>>> told;
  for (const auto& [op, effect] : held_) {
    const std::optional<Answered> answered = std::visit(FindAnswered(), effect);
    if (!answered.has_value() || !told.emplace(answered->stream, answered->tag).second) continue;
    if (answered->tag.has_value()) {
      out->push_back(effect::FailFetch{answered->stream, *answered->tag, over});
    } else {
      out->push_back(effect::Close{answered->stream, over});
    }
  }
  held_.clear();
  durable_ = last_;
}

bool OutputCommit::Tells(const Effect& effect) { return std::visit(TellsOthers(), effect); }

}  // namespace eps
