//! `--lock-delay`: the record of the holder before us, and ours.

use std::rc::Rc;

use super::io::KeeperIo;
use super::place::{Claim, StepEnd, lacking};
use super::{Keeper, PAUSE};
use crate::rules::instant::Instant;
use crate::rules::lock_delay::{self, HolderFate, HolderRecord, Verdict};
use crate::rules::message::{Progress, QueueView, Remark, Report, Right};
use crate::rules::mode::Mode;
use crate::system::futures::or;
use crate::zookeeper::session::{Failure, NodeStat, RecordWrite, Replaced, Session, Watch};

/// What a run has to do about the record of a lock before it starts.
enum Next {
    /// To mark the record of a holder that has vanished.
    Mark(RecordWrite),
    Wait(Delay),
    /// To write the record, if anything, and to start.
    Start(Option<RecordWrite>),
}

/// A holder that has vanished keeps us from starting.
struct Delay {
    until: Instant,
    view: QueueView,
    /// Fires when the record changes: `zklock break` may end the delay.
    changed: Watch,
}

impl<O: KeeperIo> Keeper<'_, O> {
    /// Waits until no holder that has vanished delays us, and records us as the holder. To be called when all locks are ours, and
    /// before that is reported. Returns whether there was a delay.
    pub(super) async fn succeed_holder(&self, session: &O::Session, won: &[Rc<Claim>]) -> Result<bool, StepEnd> {
        if self.plan.request.lock_delay.is_zero() {
            return Ok(false);
        }
        let mut has_waited = false;
        loop {
            let (mut marks, mut starts, mut longest) = (vec![], vec![], None::<Delay>);
            for claim in won {
                match self.judge_holder(session, claim).await? {
                    Next::Mark(mark) => marks.push(mark),
                    Next::Wait(delay) if longest.as_ref().is_none_or(|longest| longest.until < delay.until) => {
                        longest = Some(delay);
                    }
                    Next::Wait(_) => {}
                    Next::Start(record) => starts.extend(record),
                }
            }
            if !marks.is_empty() {
                self.write_records(session, &marks).await?;
            } else if let Some(delay) = longest {
                has_waited = true;
                self.wait_out(session, delay).await?;
            } else {
                self.run.recorded.borrow_mut().extend(won.iter().map(|claim| claim.token));
                let releases = starts.iter().cloned().zip(won).map(|(start, claim)| self.release_of(start, claim));
                // Before the reply: the run may be told to end before it comes.
                self.releases.replace(if self.is_recorded() { releases.collect() } else { vec![] });
                if starts.is_empty() || self.write_records(session, &starts).await? {
                    return Ok(has_waited);
                }
            }
        }
    }

    /// Whether other runs wait if this one vanishes. Readers that do delay nobody.
    fn is_recorded(&self) -> bool {
        self.plan.request.mode == Mode::Exclusive
    }

    /// What our server shows of the record is new enough, as with that of the [last run](Self::judge_last_run): a holder writes it
    /// before its node goes.
    async fn judge_holder(&self, session: &O::Session, claim: &Claim) -> Result<Next, StepEnd> {
        let (lock, own_delay) = (&claim.lock, self.plan.request.lock_delay);
        let path = lock_delay::path(lock.as_str());
        let (data, stat, changed) = match self.insist(|| session.read_and_watch(&path)).await {
            Ok((data, stat, changed)) => (data, stat, Some(changed)),
            Err(Failure::NoNode) => (vec![], NodeStat::default(), None),
            Err(failure) => return Err(StepEnd::because(failure, &path)),
        };
        let replaces = if changed.is_some() { Replaced::Version(stat.version) } else { Replaced::Nothing };
        let is_own = |token| self.run.recorded.borrow().contains(&token);
        let (verdict, makes_sense) = lock_delay::judge(&data, stat.written, own_delay, is_own);
        if !makes_sense {
            self.io.report_if_room(&Report::Remark(Remark::NoHolder(path.clone())));
        }
        let seen = *self.run.seen_records.borrow_mut().entry((path.clone(), stat.version)).or_insert(self.io.now());
        let write = |record: HolderRecord| RecordWrite { path, data: record.to_bytes(), replaces };
        if let (Verdict::Wait(record, until), Some(changed)) = (&verdict, changed) {
            // However far ahead the servers' clock was when the record was marked, no run waits for longer than the delay.
            let until = claim.instant(*until).min(seen + record.delay.max(own_delay));
            if self.io.now() < until {
                let (lock, holder, free_at) = (lock.to_string(), record.who(), Some(until));
                let view = QueueView { lock, place: None, holder, held_since: None, free_at };
                return Ok(Next::Wait(Delay { until, view, changed }));
            }
        }
        Ok(match verdict {
            Verdict::Mark(record) => Next::Mark(write(record)),
            _ if self.is_recorded() => {
                Next::Start(Some(write(HolderRecord::new(HolderFate::Held, claim.token, own_delay, self.io.card()))))
            }
            // The mark stays, and a later run counts from it as well.
            _ => Next::Start(None),
        })
    }

    /// Writes these records if our nodes still exist: they say nothing of a lock that is another's by now. Returns whether they
    /// were written; if not, they have to be read again.
    async fn write_records(&self, session: &O::Session, records: &[RecordWrite]) -> Result<bool, StepEnd> {
        let (nodes, beat) = (self.place.borrow().nodes(), self.beat_now());
        let path = &records[0].path;
        match session.transact(&nodes, records, &[]).await {
            Ok(()) => {
                self.extend_lease(session, beat);
                return Ok(true);
            }
            // Another run has written, or an earlier attempt of ours whose reply was lost.
            Err(Failure::Exists | Failure::Changed | Failure::NoNode) => {
                self.insist(|| session.sync(path)).await.map_err(|failure| StepEnd::because(failure, path))?;
                // If our node is missing, our server may show it for ever (ZOOKEEPER-5010), and no watch tells.
                self.insist(|| session.beat(&nodes, None)).await.map_err(|failure| StepEnd::because(failure, path))?;
            }
            Err(Failure::Unknown(why)) => log::info!("{path} may or may not have been written: {why}"),
            Err(failure) => return Err(unwritten(failure, &records[0])),
        }
        self.io.sleep(PAUSE).await;
        Ok(false)
    }

    /// Waits until the delay is over, the record has changed, or the user is to read how long it still takes.
    async fn wait_out(&self, session: &O::Session, delay: Delay) -> Result<(), StepEnd> {
        let nodes = self.place.borrow().nodes();
        self.told.borrow_mut().delayed_until = Some(delay.until);
        self.io.report_if_room(&Report::Queue(Progress::Waiting(delay.view)));
        let remaining = delay.until.saturating_since(self.io.now());
        let over = async {
            let changed = async {
                delay.changed.await;
            };
            or(self.io.sleep(self.refresh.map_or(remaining, |refresh| refresh.min(remaining))), changed).await;
            Ok(())
        };
        or(over, self.keep_beating(session, &nodes)).await
    }

    /// What replaces our record at a clean end.
    fn release_of(&self, held: RecordWrite, claim: &Claim) -> RecordWrite {
        let version = if let Replaced::Version(version) = held.replaces { version.wrapping_add(1) } else { 0 };
        let released =
            HolderRecord::new(HolderFate::Released, claim.token, self.plan.request.lock_delay, self.io.card());
        RecordWrite { data: released.to_bytes(), replaces: Replaced::Version(version), ..held }
    }
}

/// The end of a step that had to write this record.
fn unwritten(failure: Failure, record: &RecordWrite) -> StepEnd {
    match (record.replaces, record.path.rsplit_once('/')) {
        (Replaced::Nothing, Some(("", _))) => lacking(failure, "/", Right::Create),
        (Replaced::Nothing, Some((parent, _))) => lacking(failure, parent, Right::Create),
        _ => lacking(failure, &record.path, Right::Write),
    }
}
