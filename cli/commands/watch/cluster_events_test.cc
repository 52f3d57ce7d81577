#include "cli/commands/watch/cluster_events.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

v1::StatusReply LeadStatus() {
  v1::StatusReply status;
  status.set_incarnation(7);
  status.set_job_id(5);
  status.set_job_name("first");
  status.set_state(v1::JOB_STATE_RUNNING);
  status.set_term(1);
  status.set_step(10);
  status.set_joined_workers(2);
  return status;
}

// Returns the texts, those of bad events with "!" before them.
std::vector<std::string> TextsOf(const ClusterEvents& events) {
  std::vector<std::string> texts;
  for (const ClusterEvents::Event& event : events.events()) {
    texts.push_back((event.bad ? "!" : "") + event.text);
  }
  return texts;
}

// Returns the events of a change of the lead's status.
template <class Change>
std::vector<std::string> EventsOf(Change change) {
  ClusterEvents events;
  v1::StatusReply status = LeadStatus();
  events.OnStatus(1, "a:1", status);
  EXPECT_THAT(events.events(), IsEmpty()) << "the first look is no event";
  change(&status);
  events.OnStatus(2, "a:1", status);
  return TextsOf(events);
}

TEST(ClusterEvents, NothingNewIsNoEvent) {
  EXPECT_THAT(EventsOf([](v1::StatusReply* status) { status->set_step(11); }), IsEmpty());
}

TEST(ClusterEvents, TellChangesOfTheJob) {
  EXPECT_THAT(EventsOf([](v1::StatusReply* s) { s->set_state(v1::JOB_STATE_DONE); }),
              ElementsAre("job first: running → done"));
  EXPECT_THAT(EventsOf([](v1::StatusReply* s) {
                s->set_state(v1::JOB_STATE_FAILED);
                s->set_failure("no disk");
              }),
              ElementsAre("!job first: running → failed: no disk"));
  EXPECT_THAT(EventsOf([](v1::StatusReply* s) { s->set_term(2); }),
              ElementsAre("!job first: term 2 began at step 10"));
  EXPECT_THAT(EventsOf([](v1::StatusReply* s) { s->set_joined_workers(1); }),
              ElementsAre("!job first: workers 2 → 1"));
  EXPECT_THAT(EventsOf([](v1::StatusReply* s) { s->set_joined_workers(3); }),
              ElementsAre("job first: workers 2 → 3"));
  EXPECT_THAT(EventsOf([](v1::StatusReply* s) { (*s->mutable_counters())["skipped_steps"] = 2; }),
              ElementsAre("!a:1: 2 steps were skipped, because a gradient was not finite"));
  EXPECT_THAT(EventsOf([](v1::StatusReply* s) {
                s->set_job_id(6);
                s->set_job_name("second");
              }),
              ElementsAre("job second was created"));
}

TEST(ClusterEvents, TellRestartsAndSilence) {
  ClusterEvents events;
  v1::StatusReply status = LeadStatus();
  status.set_shard(1);
  (*status.mutable_counters())["scrub_damage"] = 3;
  events.OnStatus(1, "b:1", status);
  events.OnAway(2, "b:1");
  events.OnAway(3, "b:1");
  status.set_incarnation(8);
  (*status.mutable_counters())["scrub_damage"] = 5;  // of the new process
  status.set_state(v1::JOB_STATE_RECOVERING);        // the lead tells that, not this shard
  events.OnStatus(4, "b:1", status);
  EXPECT_THAT(TextsOf(events),
              ElementsAre("!b:1: the server does not answer", "b:1: the server answers again",
                          "!b:1: the process was started again"));
  EXPECT_EQ(events.events().front().time_ms, 2);
}

TEST(ClusterEvents, TellWhatHappensOnTheBoard) {
  ClusterEvents events;
  v1::ListJobsReply board;
  board.set_board(9);
  const auto add = [&board](uint64_t uid, const std::string& name) {
    v1::Job* job = board.add_jobs();
    job->set_uid(uid);
    job->set_name(name);
    job->set_phase(v1::JOB_PHASE_QUEUED);
  };
  add(1, "one");
  events.OnBoard(1, board);
  EXPECT_THAT(events.events(), IsEmpty());
  add(2, "two");
  board.mutable_jobs(0)->set_phase(v1::JOB_PHASE_RUNNING);
  board.mutable_jobs(0)->mutable_driver()->set_driver_nonce("n");
  board.mutable_jobs(0)->mutable_driver()->set_host("host");
  board.mutable_jobs(0)->mutable_driver()->set_generation(4);
  events.OnBoard(2, board);
  board.mutable_jobs(0)->set_phase(v1::JOB_PHASE_FAILED);
  board.mutable_jobs(0)->mutable_result()->set_text("no data");
  board.mutable_jobs()->RemoveLast();
  events.OnBoard(3, board);
  EXPECT_THAT(TextsOf(events),
              ElementsAre("one: QUEUED → RUNNING", "one: driven from host, lease 4",
                          "two: submitted, QUEUED", "!one: RUNNING → FAILED: no data",
                          "two: removed from the board"));
  // Another board: nothing can be compared.
  board.set_board(10);
  board.mutable_jobs(0)->set_uid(77);
  events.OnBoard(4, board);
  EXPECT_EQ(events.events().size(), 5u);
}

TEST(ClusterEvents, KeepTheLastOnes) {
  ClusterEvents events;
  v1::StatusReply status = LeadStatus();
  for (uint32_t i = 0; i < 500; ++i) {
    status.set_joined_workers(i);
    events.OnStatus(i, "a:1", status);
  }
  EXPECT_EQ(events.events().size(), ClusterEvents::kMostKept);
  EXPECT_EQ(events.events().back().time_ms, 499);
}

}  // namespace
}  // namespace eps
