#include "eps_server/core/testing/shard_answers.h"

#include <variant>

namespace eps {

void ShardAnswers::Note(const Effect& effect) {
  if (const auto* e = std::get_if<effect::Reply>(&effect)) {
    replies[e->stream].push_back(e->message);
  } else if (const auto* e = std::get_if<effect::Close>(&effect)) {
    closed[e->stream] = e->status;
  } else if (const auto* e = std::get_if<effect::SendChunk>(&effect)) {
    if (e->residual) {
      residuals[e->tag][e->chunk.value()] = e->payload;
    } else {
      fetched[e->tag] = e->payload;
    }
  } else if (const auto* e = std::get_if<effect::FailFetch>(&effect)) {
    failed_fetches[e->tag] = e->status;
  } else if (std::holds_alternative<effect::Credit>(effect)) {
    ++credits;
  } else if (const auto* e = std::get_if<effect::SendAck>(&effect)) {
    acks[e->tag] = e->ack;
  } else if (const auto* e = std::get_if<effect::SendState>(&effect)) {
    exported[e->stream].emplace_back(e->header, e->state);
  }
}

}  // namespace eps
