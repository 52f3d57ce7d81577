// Quiesce of a durable backend whose contribution log is being read.

#include <memory>

#include "gtest/gtest.h"
#include "storage/testing/durable_world.h"

namespace eps {
namespace {

class QuiesceWithLog : public testing::TestWithParam<DurableKind> {};

// Begins a log, ends the process, and reads the log in another one: until an entry follows, cuts
// wait for it.
std::unique_ptr<DurableProcess> ProcessThatReadItsLog(DurableWorld* world) {
  auto process = std::make_unique<DurableProcess>(world);
  const OpId promise = process->Submit(PromiseRequest{Term(1)});
  EXPECT_TRUE(process->Await(promise).status.ok());
  process->WriteAll(Version(1));
  EXPECT_TRUE(process->Cut(CutAt(1, 1, 1)).ok());
  const CutId base{Step(1), Term(1)};
  const OpId start = process->Submit(StartLogRequest{{{Term(1), 11}, base, base}});
  EXPECT_TRUE(process->Await(start).status.ok());
  process.reset();
  process = std::make_unique<DurableProcess>(world);
  EXPECT_TRUE(process->Restore(base, Term(1)).ok());
  const OpId read = process->Submit(ReadLogRequest{});
  EXPECT_TRUE(process->Await(read).status.ok());
  process->WriteAll(Version(2));
  return process;
}

// The cut may be on its way to the log, whose flushes were cancelled before it comes.
TEST_P(QuiesceWithLog, CancelsCutsThatComeLate) {
  bool cut_waits = false;
  for (size_t tasks = 0; !cut_waits; ++tasks) {
    SCOPED_TRACE(tasks);
    DurableWorld world(GetParam());
    world.log = {/*steps=*/2, /*step_bytes=*/12000, /*entry_bytes=*/6000};
    auto process = ProcessThatReadItsLog(&world);
    const OpId cut = process->Submit(CutAt(2, 1, 2));
    for (size_t i = 0; i < tasks && !world.executor.empty(); ++i) world.executor.Run(0);
    ASSERT_FALSE(process->IsDone(cut));
    cut_waits = world.executor.empty();
    const OpId quiesce = process->Submit(QuiesceRequest{});
    world.executor.RunAll();
    if (!process->IsDone(quiesce)) {
      DurableProcess::Abandon(std::move(process));
      FAIL() << "the cut waits for an entry that does not come";
    }
    EXPECT_TRUE(process->Take(quiesce).status.ok());
    EXPECT_EQ(process->Take(cut).status.code(), absl::StatusCode::kCancelled);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, QuiesceWithLog, testing::Values(kInDram, kOnNvme),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace eps
