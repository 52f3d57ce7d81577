#ifndef EPS_SERVER_CORE_TRANSFER_TRANSFER_DESK_H_
#define EPS_SERVER_CORE_TRANSFER_TRANSFER_DESK_H_

// The imports and exports of a shard's state. Both work at a border: before the job opens, or
// between two steps.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/ids.h"
#include "eps/v1/control.pb.h"
#include "eps/v1/shard.pb.h"
#include "eps_server/core/desk_queries.h"
#include "eps_server/core/events.h"
#include "eps_server/core/outbox.h"
#include "eps_server/core/shard_facts.h"
#include "eps_server/core/wait_page.h"

namespace eps {

// For one thread. Borrows facts, queries and outbox, which must outlive it. Errors close the stream
// of the import or export with a status.
class TransferDesk {
 public:
  TransferDesk(const ShardFacts* facts, const DeskQueries* queries, Outbox* outbox)
      : facts_(*facts), queries_(*queries), outbox_(outbox) {}

  // UNAVAILABLE while an earlier one runs, whichever stream started that.
  void On(const event::ImportInitialize& e);
  void On(const event::ImportChunk& e);
  void On(const event::ImportResidual& e);
  void On(const event::ImportFinish& e);
  void On(const event::Export& e);
  void On(const event::ExportDrained& e);
  // Returns false, and does nothing, if this desk did not start the call.
  bool On(const event::OpDone& e);
  // Answers an import whose border is durable, and reports the border to the lead.
  void On(const internal_event::ImportDurable& e);
  // Starts the exports whose border is reached.
  void On(const internal_event::StepReady&) { PumpExports(); }

  // True if no call of this desk is in flight on the backend.
  bool idle() const { return import_ops_.empty() && export_ops_.empty(); }

  // Forgets the import or export of a stream that ended.
  void Closed(StreamId stream);
  // Ends every import with `why`, and forgets which chunks were written.
  void EndImports(const absl::Status& why);
  // Ends every import and export with `why`, because the job failed or the term is over.
  void EndWork(const absl::Status& why);
  // Lists the exports whose border is not reached.
  void Waits(WaitPage* page) const;

 private:
  // The progress of an import.
  struct Import {
    uint32_t ops_left = 0;  // writes in flight
    bool finish = false;    // the client has sent everything
    v1::Imported border;
  };
  // The progress of an export.
  struct Export {
    v1::ExportStateRequest request;
    std::vector<ChunkId> chunks;
    size_t next = 0;                          // index in `chunks` of the next one to read
    std::vector<Residuals::Place> residuals;  // of the last chunk read, still to send, in reverse
    bool started = false;                     // its border is reached
    uint64_t since_ms = 0;
  };
  // A write of an import that is in flight.
  struct ImportOp {
    StreamId stream;
    ChunkId chunk;
    Version version;
    bool initializes = false;  // for an ImportInitialize, which runs alone
  };
  // A read of an export that is in flight.
  struct ExportOp {
    StreamId stream;
    ChunkId chunk;
  };

  absl::Status CheckImporting() const;
  // As CheckImporting, for a request of a driver with this lease.
  absl::Status CheckImport(const DriverLease& lease) const;
  void PumpExports();
  void OnImportDone(const ImportOp& op, const BackendDone& done);
  void OnExportDone(const ExportOp& op, const BackendDone& done);
  absl::Status CheckWhole() const;
  void MaybeFinishImport(StreamId stream);
  bool AtBorder(uint64_t step) const;
  void SendNext(StreamId stream, Export* job);
  void EndExport(StreamId stream, const absl::Status& status);
  void CountReaders();
  v1::ExportStateReply ExportHeader(ChunkId chunk) const;

  const ShardFacts& facts_;
  const DeskQueries& queries_;
  Outbox* const outbox_;
  std::map<StreamId, Import> imports_;
  std::set<StreamId> refused_;  // closed for a second ImportInitialize; may still send ImportFinish
  std::map<StreamId, Export> exports_;
  std::set<ChunkId> written_;            // by imports of this term
  std::map<OpId, ImportOp> import_ops_;  // writes in flight
  std::map<OpId, ExportOp> export_ops_;  // reads in flight
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_TRANSFER_TRANSFER_DESK_H_
