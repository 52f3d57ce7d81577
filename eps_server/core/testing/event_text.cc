#include "eps_server/core/testing/event_text.h"

#include <algorithm>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/checksum.h"
#include "compression/codec.h"
#include "eps/v1/log.pb.h"
#include "eps_server/core/trace/trace_text.h"

namespace eps {
namespace {

std::string Text(const Bytes& bytes) {
  return absl::StrFormat("[%d:%08x]", bytes.size(), Crc32c(bytes.view()));
}

std::string Text(const std::shared_ptr<const EncodedChunk>& data_or_null) {
  return data_or_null == nullptr ? "[none]" : Text(data_or_null->bytes());
}

std::string Text(const absl::Status& status) { return absl::StrCat("{", status.ToString(), "}"); }

std::string Text(const DriverLease& lease) {
  return lease.exists() ? absl::StrCat(" lease ", ToText(lease)) : "";
}

std::string Text(const CutId& cut) { return absl::StrCat(cut.step.value(), "/", cut.term.value()); }

std::string Text(const CutBorder& border) {
  return absl::StrFormat("cut %s version %d update %d norm %a%s", Text(border.id),
                         border.version.value(), border.update, border.lagged_norm,
                         border.opened ? " opened" : "");
}

std::string Text(const CutContent& content) {
  std::string text;
  for (const CutResidual& r : content.residuals) {
    absl::StrAppend(&text, " residual ", r.chunk.value(), ",", r.use.value(), ",", r.part.value(),
                    Text(r.bytes));
  }
  for (const std::string& record : content.records) {
    v1::StepRecord parsed;
    parsed.ParseFromString(record);
    absl::StrAppend(&text, " record {", parsed.ShortDebugString(), "}");
  }
  return text;
}

std::string Text(const FoundLog& log) {
  return absl::StrCat("log ", log.id.term.value(), ":", log.id.incarnation, " opened ",
                      Text(log.opened), " base ", Text(log.base));
}

std::string Text(const LogEntry& entry) {
  v1::LogFact fact;
  fact.ParseFromString(entry.text);
  return absl::StrCat("step ", entry.step.value(), " {", fact.ShortDebugString(), "} ",
                      Text(entry.payload), " ", Text(entry.residual));
}

std::string Text(const Codec* codec, Axis axis) {
  return absl::StrCat(codec->name(), axis == Axis::kRow ? " row" : " column");
}

std::string Text(const ReducedGradient* r) {
  if (r == nullptr) return "[none]";
  if (!r->in_memory()) return "[stored]";
  return Text(static_cast<const GradientInMemory*>(r)->gradient().bytes());
}

std::string Text(const UpdateRequest& r) {
  std::string text = absl::StrFormat(
      "chunk %d %d->%d parts %d scale %a lr %a update %d corrections %a %a grad scale %a",
      r.chunk.value(), r.from.value(), r.to.value(), r.parts, r.norm_scale, r.step.lr,
      r.step.update, r.step.bias_correction1, r.step.bias_correction2, r.step.grad_scale);
  for (const UpdateInput& input : r.inputs) {
    absl::StrAppend(&text, " input ", input.use, ",", input.parts.first, "+", input.parts.count,
                    Text(input.data));
  }
  if (r.reduced != nullptr) absl::StrAppend(&text, " reduced ", Text(r.reduced.get()));
  for (const double ratio : r.trust_ratios) absl::StrAppendFormat(&text, " trust %a", ratio);
  for (const UpdateRequest::Encode& encode : r.encode) {
    absl::StrAppend(&text, " encode ", Text(encode.codec, encode.axis));
  }
  return text;
}

struct ValueText {
  std::string operator()(absl::monostate) const { return "nothing"; }
  std::string operator()(const Bytes& bytes) const { return Text(bytes); }
  std::string operator()(const UpdateResult& r) const {
    std::string text =
        absl::StrFormat("squares %a reduced %s", r.sum_squares, Text(r.reduced.get()));
    for (const Bytes& bytes : r.encoded) absl::StrAppend(&text, " encoded ", Text(bytes));
    return text;
  }
  std::string operator()(const std::shared_ptr<const RecoveredState>& state) const {
    std::string text = absl::StrCat("promised ", state->promised.value());
    for (const CutBorder& cut : state->cuts) absl::StrAppend(&text, " ", Text(cut));
    if (state->log.has_value()) absl::StrAppend(&text, " ", Text(*state->log));
    return text;
  }
  std::string operator()(const std::shared_ptr<const CutContent>& content) const {
    return absl::StrCat("content", Text(*content));
  }
  std::string operator()(const ScrubResult& r) const {
    return absl::StrCat("scrubbed ", r.bytes, r.ends_pass ? " ends pass" : "");
  }
  std::string operator()(const MeasureResult& r) const {
    std::string text = "measured";
    for (const SegmentSquares& s : r.segments) {
      absl::StrAppendFormat(&text, " %a %a", s.weights, s.steps);
    }
    return text;
  }
  std::string operator()(const std::shared_ptr<const std::vector<LogEntry>>& entries) const {
    std::string text = "entries";
    for (const LogEntry& entry : *entries) absl::StrAppend(&text, " <", Text(entry), ">");
    return text;
  }
};

struct RequestText {
  std::string operator()(const ReadRequest& r) const {
    return absl::StrCat("Read ", r.chunk.value(), " at ", r.version.value(), " ",
                        Text(r.codec, r.axis));
  }
  std::string operator()(const ReadStateRequest& r) const {
    return absl::StrCat("ReadState ", r.chunk.value(), " at ", r.version.value());
  }
  std::string operator()(const WriteStateRequest& r) const {
    return absl::StrCat("WriteState ", r.chunk.value(), " at ", r.version.value(), Text(r.state));
  }
  std::string operator()(const InitializeRequest& r) const {
    return absl::StrCat("Initialize ", r.chunk.value());
  }
  std::string operator()(const ReduceRequest& r) const {
    return absl::StrCat("Reduce ", Text(r.update));
  }
  std::string operator()(const UpdateRequest& r) const { return absl::StrCat("Update ", Text(r)); }
  std::string operator()(const MeasureRequest& r) const {
    return absl::StrCat("Measure ", Text(r.update));
  }
  std::string operator()(const CutRequest& r) const {
    return absl::StrCat("Cut ", Text(r.border), Text(r.content));
  }
  std::string operator()(const QuiesceRequest&) const { return "Quiesce"; }
  std::string operator()(const RecoverRequest&) const { return "Recover"; }
  std::string operator()(const RestoreRequest& r) const {
    return absl::StrCat("Restore ", r.base.has_value() ? Text(*r.base) : "nothing", " term ",
                        r.term.value());
  }
  std::string operator()(const PromiseRequest& r) const {
    return absl::StrCat("Promise ", r.term.value());
  }
  std::string operator()(const ScrubRequest&) const { return "Scrub"; }
  std::string operator()(const StartLogRequest& r) const {
    return absl::StrCat("StartLog ", Text(r.log));
  }
  std::string operator()(const LogRequest& r) const { return absl::StrCat("Log ", Text(r.entry)); }
  std::string operator()(const ReadLogRequest&) const { return "ReadLog"; }
};

template <class E>
std::string RpcText(const char* name, const E& e) {
  return absl::StrCat(name, " on ", e.stream.value(), " {", e.request.ShortDebugString(), "}");
}

struct EventText {
  std::string operator()(const event::Opened&) const { return "Opened"; }
  std::string operator()(const event::StreamClosed& e) const {
    return absl::StrCat("StreamClosed ", e.stream.value());
  }
  std::string operator()(const event::Join& e) const { return RpcText("Join", e); }
  std::string operator()(const event::Beat& e) const {
    return absl::StrCat("Beat on ", e.stream.value(), " {", e.beat.ShortDebugString(), "}");
  }
  std::string operator()(const event::BeginStep& e) const { return RpcText("BeginStep", e); }
  std::string operator()(const event::Fetch& e) const { return RpcText("Fetch", e); }
  std::string operator()(const event::FetchDrained& e) const {
    return absl::StrCat("FetchDrained ", e.stream.value());
  }
  std::string operator()(const event::PushOffered& e) const {
    return absl::StrCat("PushOffered on ", e.stream.value(), " {", e.header.ShortDebugString(),
                        "}");
  }
  std::string operator()(const event::PushReceived& e) const {
    return absl::StrCat("PushReceived on ", e.stream.value(), " tag ", e.tag, " ", Text(e.data),
                        Text(e.residual));
  }
  std::string operator()(const event::PushInvalid& e) const {
    return absl::StrCat("PushInvalid on ", e.stream.value(), " tag ", e.tag, " ", Text(e.status));
  }
  std::string operator()(const event::NewDriver& e) const {
    return absl::StrCat("NewDriver", Text(e.lease));
  }
  std::string operator()(const event::RestartImport&) const { return "RestartImport"; }
  std::string operator()(const event::Standing& e) const {
    return absl::StrCat("Standing ", static_cast<int>(e.standing), " workers ", e.workers);
  }
  std::string operator()(const event::DrainWorker& e) const {
    return absl::StrCat("DrainWorker ", e.nonce);
  }
  std::string operator()(const event::ImportInitialize& e) const {
    return absl::StrCat("ImportInitialize on ", e.stream.value(), Text(e.lease));
  }
  std::string operator()(const event::ImportChunk& e) const {
    return absl::StrCat("ImportChunk on ", e.stream.value(), " chunk ", e.chunk.value(), " at ",
                        e.version.value(), Text(e.state), Text(e.lease));
  }
  std::string operator()(const event::ImportResidual& e) const {
    return absl::StrCat("ImportResidual on ", e.stream.value(), " chunk ", e.chunk.value(), ",",
                        e.use.value(), ",", e.part.value(), Text(e.residual), Text(e.lease));
  }
  std::string operator()(const event::ImportFinish& e) const {
    return absl::StrFormat("ImportFinish on %d step %d version %d update %d norm %a%s",
                           e.stream.value(), e.step.value(), e.version.value(), e.update,
                           e.lagged_norm, Text(e.lease));
  }
  std::string operator()(const event::Export& e) const { return RpcText("Export", e); }
  std::string operator()(const event::ExportDrained& e) const {
    return absl::StrCat("ExportDrained ", e.stream.value());
  }
  std::string operator()(const event::Watch& e) const {
    return absl::StrCat("Watch on ", e.stream.value(), " after ", e.after_step, ",",
                        e.after_evaluation, " until ", e.until_evaluation);
  }
  std::string operator()(const event::Gate& e) const {
    return absl::StrCat("Gate on ", e.stream.value(), " of ", e.holder,
                        e.step.has_value() ? absl::StrCat(" step ", *e.step) : " lifted",
                        e.lapses ? " lapses" : "", e.outlives_driver ? " outlives" : "",
                        e.number > 0 ? absl::StrCat(" number ", e.number) : "", Text(e.lease));
  }
  std::string operator()(const event::Drain&) const { return "Drain"; }
  std::string operator()(const event::OpDone& e) const {
    return absl::StrCat("OpDone ", e.done.op.value(), " ", Text(e.done.status), " ",
                        std::visit(ValueText(), e.done.value));
  }
  std::string operator()(const event::FromShard& e) const {
    return absl::StrCat("FromShard ", e.from.value(), " {", e.message.ShortDebugString(), "}");
  }
  std::string operator()(const event::LinkUp& e) const {
    return absl::StrCat("LinkUp ", e.peer.value());
  }
  std::string operator()(const event::LinkDown& e) const {
    return absl::StrCat("LinkDown ", e.peer.value());
  }
  std::string operator()(const event::Timer& e) const {
    return absl::StrCat("Timer ", e.id.value());
  }
};

std::string Named(const google::protobuf::Message& message) {
  return absl::StrCat(message.GetTypeName(), " {", message.ShortDebugString(), "}");
}

struct ReplyText {
  std::string operator()(const google::protobuf::Message& message) const { return Named(message); }
  std::string operator()(const effect::SharedRecord& record) const { return Named(*record); }
};

struct EffectText {
  std::string operator()(const effect::Reply& e) const {
    return absl::StrCat("Reply on ", e.stream.value(), " ", std::visit(ReplyText(), e.message));
  }
  std::string operator()(const effect::Close& e) const {
    return absl::StrCat("Close ", e.stream.value(), " ", Text(e.status));
  }
  std::string operator()(const effect::SendChunk& e) const {
    return absl::StrCat(
        "SendChunk on ", e.stream.value(), " tag ", e.tag, " chunk ", e.chunk.value(), " at ",
        e.version.value(), " codec ", static_cast<uint32_t>(e.codec), " view ", e.view,
        e.residual ? " residual" : "", e.completes_fetch ? " completes" : "", Text(e.payload));
  }
  std::string operator()(const effect::FailFetch& e) const {
    return absl::StrCat("FailFetch on ", e.stream.value(), " tag ", e.tag, " ", Text(e.status));
  }
  std::string operator()(const effect::Credit& e) const {
    return absl::StrCat("Credit on ", e.stream.value(), " tag ", e.tag);
  }
  std::string operator()(const effect::SendAck& e) const {
    return absl::StrCat("SendAck on ", e.stream.value(), " tag ", e.tag, " {",
                        e.ack.ShortDebugString(), "}");
  }
  std::string operator()(const effect::SendState& e) const {
    return absl::StrCat("SendState on ", e.stream.value(), " {", e.header.ShortDebugString(), "}",
                        Text(e.state));
  }
  std::string operator()(const effect::Start& e) const {
    return absl::StrCat("Start ", e.op.value(), " ", VisitRequest(RequestText(), e.request));
  }
  // The golden traces have this text, which names Recycle as operation 0.
  std::string operator()(const effect::Recycle& e) const {
    return absl::StrCat("Start 0 Recycle ", Text(e.oldest_kept));
  }
  std::string operator()(const effect::ToShard& e) const {
    return absl::StrCat("ToShard ", e.to.value(), " {", e.message.ShortDebugString(), "}");
  }
  std::string operator()(const effect::SetTimer& e) const {
    return absl::StrCat("SetTimer ", e.id.value(), " after ", e.after_ms);
  }
  std::string operator()(const effect::ClearTimer& e) const {
    return absl::StrCat("ClearTimer ", e.id.value());
  }
  std::string operator()(const effect::Trace& e) const {
    const TraceAction& a = e.action;
    return absl::StrCat("Trace ", TraceKindName(a.kind), " term ", a.term.value(), " step ",
                        a.step.value(), " subject ", a.subject, " version ", a.version.value(),
                        " cut ", Text(a.cut));
  }
  std::string operator()(const effect::Drained& e) const { return absl::StrCat("Drained ", e.why); }
  std::string operator()(const effect::Abort& e) const {
    return absl::StrCat("Abort ", static_cast<int>(e.code), " ", e.why);
  }
};

}  // namespace

std::string ToText(const Event& event) { return std::visit(EventText(), event); }
std::string ToText(const Effect& effect) { return std::visit(EffectText(), effect); }

std::string ToText(v1::StatusReply status) {
  for (v1::StageTimes& times : *status.mutable_stage_times()) {
    times.clear_jit_seconds();
    times.clear_slack_seconds();
  }
  return status.ShortDebugString();
}

}  // namespace eps
