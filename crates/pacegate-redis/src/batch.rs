//! Requests that one script call decides.
//!
//! Consecutive requests with the same cell and cost form one run, which the server decides in one step, however many
//! requests there are. The server returns the states from before the call. From these, [`Replay`] computes the answer
//! of each request, in order of arrival and with the algorithms of the memory store.

use std::collections::{BTreeMap, HashMap};

use pacegate::{Limit, StoreError};
use redis::Cmd;
use smallvec::SmallVec;

use crate::{
    cell::{CellCharge, CellCharges, CellId, Names},
    fingerprint::Fingerprint,
    replay::{Replay, Snapshot},
    responder::{Delivery, Responder},
    wire::Program,
};

/// A request that waits for its answer.
#[derive(Debug)]
pub(crate) struct PendingRequest {
    /// Charged all or nothing. On a cluster, all are in one slot.
    pub(crate) charges: CellCharges,
    /// Maximum number of times to charge. The script charges as often as the limits allow. 0 is a peek. More than 1 is
    /// a draw of a lease, or a request for up to this many units. Several charges then have a cost of 1.
    pub(crate) times: u64,
    /// The Redis key that stores the answer, if the request has an id.
    pub(crate) once: Option<CellId>,
    /// The reservation that the request opens.
    pub(crate) reservation: Option<NewReservation>,
    pub(crate) responder: Responder,
}

/// A reservation to open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewReservation {
    /// The Redis key that shows that it is open.
    pub(crate) key: CellId,
    /// Microseconds until it expires.
    pub(crate) ttl: u64,
}

/// Requests that one script call decides.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    cells: Vec<Cell>,
    places: HashMap<CellId, u32, foldhash::fast::RandomState>,
    runs: Vec<Run>,
    requests: Vec<PendingRequest>,
}

#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) id: CellId,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) limit: Limit,
    pub(crate) script_id: u64,
    /// Whether it returns the units of unsettled reservations.
    pub(crate) returns: bool,
    /// The last run that charges it.
    pub(crate) last_run: usize,
}

impl Cell {
    /// Returns whether the state is a log. Otherwise it is a string of three numbers.
    pub(crate) fn is_log(&self) -> bool {
        self.limit.algorithm().keeps_log()
    }
}

/// Requests with the same cost for the same cell, or one request with several charges.
#[derive(Debug)]
pub(crate) struct Run {
    /// Indexes of the batch's requests, in order of arrival.
    pub(crate) requests: SmallVec<[u32; 1]>,
    pub(crate) times: u64,
    /// Indexes of the batch's cells, one for each charge of the first request.
    pub(crate) cells: SmallVec<[u32; 1]>,
}

/// Maximum number of cells in a batch. More would block the server for too long.
const MAX_CELLS: usize = 64;
/// Maximum number of runs in a batch, for the same reason. Several runs may charge one cell.
const MAX_RUNS: usize = 256;

impl Batch {
    fn new(request: PendingRequest, capacity: usize) -> Self {
        let mut batch = Self { requests: Vec::with_capacity(capacity), ..Self::default() };
        batch.push(request);
        batch
    }

    /// Packs requests into as few batches as possible, in order.
    pub(crate) fn pack(requests: Vec<PendingRequest>) -> Vec<Self> {
        let mut batches: Vec<Self> = Vec::new();
        let capacity = requests.len().min(MAX_RUNS);
        for request in requests {
            match batches.last_mut() {
                Some(last) if last.has_room_for(&request) => last.push(request),
                _ => batches.push(Self::new(request, capacity)),
            }
        }
        batches
    }

    fn push(&mut self, request: PendingRequest) {
        let cells: SmallVec<[u32; 1]> =
            request.charges.iter().map(|charge| self.place(charge)).collect();
        let place = self.requests.len() as u32;
        match self.run_to_join(&request, &cells) {
            Some(run) => {
                run.requests.push(place);
                run.times += request.times;
            }
            None => {
                for &cell in &cells {
                    self.cells[cell as usize].last_run = self.runs.len();
                }
                let requests = SmallVec::from_elem(place, 1);
                self.runs.push(Run { requests, times: request.times, cells });
            }
        }
        self.requests.push(request);
    }

    /// Returns whether a request can be added. A request with an id must be alone, because the stored answer is that of
    /// the whole batch. A batch cannot charge one cell under two limits.
    fn has_room_for(&self, request: &PendingRequest) -> bool {
        let same_limit = |charge: &CellCharge| {
            let place = self.places.get(&charge.cell);
            place.is_none_or(|&place| self.cells[place as usize].limit == charge.limit)
        };
        let small = self.cells.len() < MAX_CELLS && self.runs.len() < MAX_RUNS;
        let alone = request.once.is_some() || self.once().is_some();
        small && !alone && request.charges.iter().all(same_limit)
    }

    /// Returns the index of a charge's cell. Adds the cell if it is new.
    fn place(&mut self, charge: &CellCharge) -> u32 {
        let place = *self.places.entry(charge.cell).or_insert_with(|| {
            let CellCharge { cell: id, fingerprint, limit, script_id, .. } = *charge;
            let (returns, last_run) = (false, usize::MAX);
            self.cells.push(Cell { id, fingerprint, limit, script_id, returns, last_run });
            (self.cells.len() - 1) as u32
        });
        self.cells[place as usize].returns |= charge.returns;
        place
    }

    /// Returns the run that a request can join: the last run of its cell, if it has the same cost. Charges of permits
    /// are never joined, because each permit has an id.
    fn run_to_join(&mut self, request: &PendingRequest, cells: &[u32]) -> Option<&mut Run> {
        let ([charge], &[cell]) = (request.charges.as_slice(), cells) else { return None };
        let run = self.runs.get_mut(self.cells[cell as usize].last_run)?;
        let first = &self.requests[run.requests[0] as usize];
        let is_reserved = request.reservation.is_some() || first.reservation.is_some();
        let first = &first.charges;
        let joins = !is_reserved
            && request.times > 0
            && run.times > 0
            && first.len() == 1
            && first[0].cost == charge.cost
            && first[0].excess == charge.excess
            && !charge.holds_permits()
            // The wait of each denial differs, because each adds units.
            && !(charge.excess.is_recorded() && charge.limit.algorithm().keeps_log());
        joins.then_some(run)
    }

    pub(crate) fn cells(&self) -> &[Cell] {
        &self.cells
    }

    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    pub(crate) fn requests(&self) -> &[PendingRequest] {
        &self.requests
    }

    /// Returns the charges of a run.
    pub(crate) fn charges(&self, run: &Run) -> &[CellCharge] {
        &self.requests[run.requests[0] as usize].charges
    }

    /// Returns the reservation that a run opens.
    pub(crate) fn reservation(&self, run: &Run) -> Option<NewReservation> {
        self.requests[run.requests[0] as usize].reservation
    }

    pub(crate) fn responders_mut(&mut self) -> impl Iterator<Item = &mut Responder> {
        self.requests.iter_mut().map(|request| &mut request.responder)
    }

    /// Returns the Redis key that stores the answer, if the request has an id.
    pub(crate) fn once(&self) -> Option<CellId> {
        self.requests.first().and_then(|request| request.once)
    }

    /// Returns whether `charge_simple.lua` can decide the batch: each request has one charge and no id, each cell has
    /// one run, there are no peeks, and no cell is a log, has a calendar period or returns unsettled reservations.
    pub(crate) fn is_simple(&self) -> bool {
        let is_simple_cell =
            |cell: &Cell| !cell.is_log() && cell.limit.calendar().is_none() && !cell.returns;
        let is_simple_run = |run: &Run| match self.charges(run) {
            [charge] if self.reservation(run).is_some() => {
                charge.cost > 0 && charge.enforced && !charge.excess.is_recorded()
            }
            charges => charges.len() == 1 && run.times > 0,
        };
        self.runs.len() == self.cells.len()
            && self.once().is_none()
            && self.runs.iter().all(is_simple_run)
            && self.cells.iter().all(is_simple_cell)
    }

    /// Adds the keys and the program to a script call.
    pub(crate) fn command(&self, mut command: Cmd, names: &Names, program: Program) -> Cmd {
        let cells = || program.order.iter().map(|&place| &self.cells[place as usize]);
        let due = cells().filter(|cell| cell.returns).map(|cell| names.due(cell.id));
        let mut others: Vec<Vec<u8>> = due.collect();
        others.extend(self.once().map(|once| names.key(once)));
        let run = |place: usize| match program.is_simple {
            true => &self.runs[self.cells[program.order[place] as usize].last_run],
            false => &self.runs[place],
        };
        let reservations = (0..self.runs.len()).filter_map(|place| self.reservation(run(place)));
        others.extend(reservations.map(|reservation| names.key(reservation.key)));
        command.arg(self.cells.len() + others.len());
        for cell in cells() {
            command.arg(names.key(cell.id));
        }
        command.arg(others);
        command.arg(program.bytes);
        command
    }

    /// Answers every request, and passes the new states of the cells to `learn`.
    pub(crate) fn finish(mut self, reply: &[u8], mut learn: impl FnMut(Fingerprint, Snapshot)) {
        match Replay::read(&self, reply) {
            Ok(replay) => {
                let (answers, snapshots) = replay.run(&self);
                // A stored answer may be old, so its states are not passed on.
                if self.once().is_none() {
                    snapshots.into_iter().for_each(|(cell, snapshot)| learn(cell, snapshot));
                }
                let mut delivery = Delivery::new();
                for (responder, answer) in self.responders_mut().zip(answers) {
                    delivery.add(responder, answer);
                }
                delivery.finish();
            }
            Err(error) => {
                self.responders_mut().for_each(|responder| responder.answer(Err(error.clone())));
            }
        }
    }

    /// Drops cancelled requests; `None` if none is left.
    pub(crate) fn awaited(self) -> Option<Self> {
        let mut rest = self.requests.into_iter().filter(|request| request.responder.is_awaited());
        let mut batch = Self::new(rest.next()?, 0);
        rest.for_each(|request| batch.push(request));
        Some(batch)
    }

    /// Answers the requests that open a reservation with an error. Returns the others, if there are any.
    pub(crate) fn fail_reservations(self, error: &StoreError) -> Option<Self> {
        let (reserving, others): (Vec<_>, Vec<_>) =
            self.requests.into_iter().partition(|request| request.reservation.is_some());
        for mut request in reserving {
            request.responder.answer(Err(error.clone()));
        }
        let mut others = others.into_iter();
        let mut batch = Self::new(others.next()?, 0);
        others.for_each(|request| batch.push(request));
        Some(batch)
    }

    /// Splits the batch by keys: those of the cells, and that of a reservation. Requests for the same keys stay
    /// together, in order.
    pub(crate) fn split(self) -> Vec<Self> {
        type Keys = (SmallVec<[CellId; 1]>, Option<CellId>);
        let mut parts: BTreeMap<Keys, Vec<PendingRequest>> = BTreeMap::new();
        for request in self.requests {
            let cells = request.charges.iter().map(|charge| charge.cell).collect();
            let reservation = request.reservation.map(|reservation| reservation.key);
            parts.entry((cells, reservation)).or_default().push(request);
        }
        parts.into_values().flat_map(Self::pack).collect()
    }
}

#[cfg(test)]
mod tests {
    use pacegate::Charge;

    use super::*;

    /// Otherwise a request for one key of a migrating slot would fail because of a reservation, which needs two keys.
    #[test]
    fn a_reservation_is_split_from_other_requests_for_its_key() {
        let names = Names::new("", b"");
        let request = |key: &str, reservation: Option<u128>| {
            let charge = Charge::new("api".parse().unwrap(), key, Limit::per_minute(9));
            let charges: CellCharges = [names.cell_charge(&charge).unwrap()].into_iter().collect();
            let key = |id| names.reservation(id, &charges);
            let reservation = reservation.map(|id| NewReservation { key: key(id), ttl: 1 });
            let (responder, _) = Responder::new();
            PendingRequest { charges, times: 1, once: None, reservation, responder }
        };
        let requests = [("a", None), ("a", Some(1)), ("b", None), ("a", None), ("a", Some(2))];
        let requests = requests.map(|(key, reservation)| request(key, reservation)).into();
        let batches = Batch::pack(requests);
        assert_eq!(batches.len(), 1);
        let parts = batches.into_iter().flat_map(Batch::split);
        let mut sizes: Vec<_> = parts.map(|part| part.requests.len()).collect();
        sizes.sort_unstable();
        assert_eq!(sizes, [1, 1, 1, 2]);
    }
}
