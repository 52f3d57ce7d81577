#include "worker/client/testing/scripted_control.h"

#include <set>
#include <string>
#include <thread>
#include <vector>

namespace eps {

grpc::Status ScriptedShard::ControlService::Hello(grpc::ServerContext*, const v1::HelloRequest*,
                                                  v1::HelloReply* reply) {
  MutexLock lock(&s_->mu_);
  ++s_->seen_.hellos;
  reply->set_protocol(1);
  return grpc::Status::OK;
}

grpc::Status ScriptedShard::ControlService::Join(grpc::ServerContext* context,
                                                 const v1::JoinRequest* request,
                                                 v1::JoinReply* reply) {
  MutexLock lock(&s_->mu_);
  s_->seen_.joins.push_back(*request);
  s_->changed_.NotifyAll();
  while (s_->script_.importing && !s_->stopping_ && !context->IsCancelled()) {
    s_->changed_.WaitFor(&s_->mu_, kScriptPoll);
  }
  reply->set_spec_text(s_->spec_->ToText());
  reply->set_term(s_->script_.term);
  for (const v1::Lease& lease : Leases()) *reply->add_leases() = lease;
  reply->set_lease_ms(s_->script_.leases.length_ms);
  for (const std::string& server : s_->servers_) reply->add_servers(server);
  reply->set_step(s_->script_.next_step);
  reply->set_state(s_->script_.importing_joins > 0 ? v1::JOB_STATE_IMPORTING
                                                   : v1::JOB_STATE_RUNNING);
  if (s_->script_.importing_joins > 0) --s_->script_.importing_joins;
  return grpc::Status::OK;
}

grpc::Status ScriptedShard::ControlService::Session(grpc::ServerContext*, SessionStream* stream) {
  v1::Beat beat;
  grpc::Status end;
  bool ended = !stream->Read(&beat);
  {
    MutexLock lock(&s_->mu_);
    ++s_->seen_.sessions;
    if (!ended) ended = OnBeat(beat, &end);
  }
  if (ended) return end;
  std::thread notices([&] { WriteNotices(stream, &ended); });
  while (stream->Read(&beat)) {
    MutexLock lock(&s_->mu_);
    if (OnBeat(beat, &end)) break;
  }
  {
    MutexLock lock(&s_->mu_);
    ended = true;
    s_->changed_.NotifyAll();
  }
  notices.join();
  return end;
}

grpc::Status ScriptedShard::ControlService::Status(grpc::ServerContext* context,
                                                   const v1::StatusRequest*,
                                                   v1::StatusReply* reply) {
  MutexLock lock(&s_->mu_);
  ++s_->seen_.statuses;
  s_->changed_.NotifyAll();
  while (!s_->script_.answer_status && !s_->stopping_ && !context->IsCancelled()) {
    s_->changed_.WaitFor(&s_->mu_, kScriptPoll);
  }
  reply->set_job_id(s_->spec_->id().value());
  reply->set_state(s_->script_.failure.empty() ? v1::JOB_STATE_RUNNING : v1::JOB_STATE_FAILED);
  if (s_->script_.importing) reply->set_state(v1::JOB_STATE_IMPORTING);
  reply->set_failure(s_->script_.failure);
  return grpc::Status::OK;
}

std::vector<v1::Lease> ScriptedShard::ControlService::Leases() const {
  std::vector<v1::Lease> leases;
  if (s_->script_.leases.standby) return leases;
  for (const uint32_t part :
       std::set<uint32_t>(s_->script_.leases.parts.begin(), s_->script_.leases.parts.end())) {
    v1::Lease& lease = leases.emplace_back();
    lease.set_part(part);
    lease.set_generation(s_->script_.leases.generation + part);
  }
  return leases;
}

v1::Notice ScriptedShard::ControlService::NewNotice() const {
  v1::Notice notice;
  notice.set_term(s_->script_.term);
  for (const v1::Lease& lease : Leases()) *notice.add_leases() = lease;
  notice.set_lease_ms(s_->script_.leases.length_ms);
  notice.set_done(s_->script_.leases.job_done);
  return notice;
}

void ScriptedShard::ControlService::WriteNotices(SessionStream* stream, const bool* ended) {
  std::string last;
  for (;;) {
    v1::Notice notice;
    {
      MutexLock lock(&s_->mu_);
      notice = NewNotice();
      while (!*ended && !s_->stopping_ && notice.SerializeAsString() == last) {
        s_->changed_.WaitFor(&s_->mu_, kScriptPoll);
        notice = NewNotice();
      }
      if (*ended || s_->stopping_) return;
    }
    last = notice.SerializeAsString();
    stream->Write(notice);
  }
}

bool ScriptedShard::ControlService::OnBeat(const v1::Beat& beat, grpc::Status* end) {
  s_->seen_.beats.push_back(beat);
  s_->seen_.beat_times.push_back(std::chrono::steady_clock::now());
  if (beat.leave()) {
    s_->seen_.counted_at_leave = s_->seen_.times_counted.size();
    s_->seen_.reports_at_leave = s_->seen_.reports.size();
  }
  s_->changed_.NotifyAll();
  if (!s_->script_.leases.session_ends.empty()) {
    *end = s_->script_.leases.session_ends.front();
    s_->script_.leases.session_ends.pop_front();
    return true;
  }
  return beat.leave() && s_->script_.leases.answer_leave;
}

}  // namespace eps
