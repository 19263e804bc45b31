//! Names in a directory of a client, and what calls of it may be told.
//!
//! Only its client changes them, and each name by one call at a time, so each call has one outcome.
//! One that was given up may be carried out for a while yet, or not: its names rest until then, and
//! what is there is what they are. A crash leaves of each name what it was when it was last stable,
//! or anything that it may have been since; what was told to be durable, or was synced, is stable.

use std::collections::{BTreeMap, BTreeSet};

use piped_core::call::FileKind;
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_sim::InodeId;

use super::outcome::Thing::{self, Directory, File, Nothing};
use super::outcome::{NAMES, NameCall, TOP, Things};

/// The names of one directory.
#[derive(Debug)]
pub(super) struct Names {
    names: [Name; NAMES.len()],
    rests: Vec<Rest>,
    listing: Option<Listing>,
    /// How often its node crashed.
    crashes: u32,
    /// A change that was acknowledged was lost, and nobody who syncs may be told that all is well.
    lost: bool,
    /// Durable changes and syncs that ended well since the last crash.
    made_stable: u64,
}

#[derive(Debug)]
struct Name {
    now: Thing,
    /// What a crash may leave.
    may_be: BTreeSet<Thing>,
    /// The client was told that it is so.
    told: bool,
    /// A call that was not told to be over is about it.
    busy: bool,
    /// Calls so far that may have changed it.
    changes: u64,
}

/// A change that was given up.
#[derive(Debug)]
struct Rest {
    until: Nanos,
    before: Things,
    after: Things,
}

/// A directory that is listed part by part.
#[derive(Debug)]
struct Listing {
    below: bool,
    cookie: u64,
    /// A part is under way.
    asked: bool,
    /// How often each name had changed when it began.
    changes: [u64; NAMES.len()],
    seen: Vec<usize>,
}

/// A call, as it was made.
#[derive(Debug)]
pub(super) struct AskedOfNames {
    object: usize,
    call: NameCall,
    /// How it ends, if nothing goes wrong.
    status: Status,
    crashes: u32,
    before: Things,
    after: Things,
    /// The names that a sync covers.
    covers: BTreeMap<usize, Covered>,
}

#[derive(Debug)]
struct Covered {
    /// How often it had changed.
    changes: u64,
    now: Thing,
    told: bool,
}

/// What a part of a listing has told.
#[derive(Debug)]
pub(super) struct Listed {
    /// Names, [`STAYS`] among them, what they are, and the number of the file if it was asked for.
    names: Vec<(usize, FileKind, Option<u64>)>,
    /// Where the next part goes on, if there is one.
    next: Option<u64>,
}

impl Listed {
    /// Names, each with what it is, and where the next part goes on.
    pub(super) fn new(names: Vec<(usize, FileKind, Option<u64>)>, next: Option<u64>) -> Self {
        Self { names, next }
    }
}

/// The number of the name that stays, among those that were listed.
pub(super) const STAYS: usize = NAMES.len();

impl AskedOfNames {
    /// The directory, as an object.
    pub(super) const fn object(&self) -> usize {
        self.object
    }

    /// What its client has asked.
    pub(super) const fn call(&self) -> NameCall {
        self.call
    }

    /// How it ends, if nothing goes wrong.
    pub(super) const fn status(&self) -> Status {
        self.status
    }

    /// Crashes of the directory's node before.
    pub(super) const fn crashes(&self) -> u32 {
        self.crashes
    }

    /// The names that it is about.
    pub(super) fn names(&self) -> impl Iterator<Item = usize> {
        self.after.keys().copied()
    }

    /// Whether it changes something, if nothing goes wrong.
    pub(super) fn changes(&self) -> bool {
        self.before != self.after
    }
}

impl Names {
    /// Names that stand for files, or for nothing, all of it stable.
    pub(super) fn new(files: [Option<InodeId>; NAMES.len()]) -> Self {
        let names = files.map(|file| {
            let now = file.map_or(Nothing, File);
            let may_be = [now].into();
            Name { now, may_be, told: false, busy: false, changes: 0 }
        });
        Self { names, rests: Vec::new(), listing: None, crashes: 0, lost: false, made_stable: 0 }
    }

    /// Crashes of their node so far.
    pub(super) const fn crashes(&self) -> u32 {
        self.crashes
    }

    /// Whether a call may be made now: nothing else is about its names.
    pub(super) fn is_free(&self, call: NameCall) -> bool {
        let asked = self.listing.as_ref().is_some_and(|it| it.asked);
        let lists = matches!(call, NameCall::List { .. });
        !(lists && asked) && call.names().into_iter().all(|name| !self.names[name].busy)
    }

    /// A call is made.
    pub(super) fn begin(&mut self, object: usize, call: NameCall) -> AskedOfNames {
        let (status, after) = call.outcome(|name| self.names[name].now);
        let before = after.keys().map(|&name| (name, self.names[name].now)).collect();
        let mut covers = BTreeMap::new();
        if call == NameCall::Sync {
            let names = self.names[..TOP].iter().enumerate().filter(|(_, it)| !it.busy);
            let covered = |it: &Name| Covered { changes: it.changes, now: it.now, told: it.told };
            covers = names.map(|(number, it)| (number, covered(it))).collect();
        }
        if let NameCall::List { below, .. } = call {
            self.list(below);
        }
        let asked =
            AskedOfNames { object, call, status, crashes: self.crashes, before, after, covers };
        for (&name, &after) in &asked.after {
            let name = &mut self.names[name];
            name.busy = true;
            name.changes += u64::from(asked.before != asked.after);
            name.may_be.insert(after);
        }
        asked
    }

    /// The next part of a listing is asked for.
    fn list(&mut self, below: bool) {
        let changes = self.names.each_ref().map(|it| if it.busy { u64::MAX } else { it.changes });
        let going = self.listing.take().filter(|it| it.below == below);
        let new = || Listing { below, cookie: 0, asked: true, changes, seen: Vec::new() };
        self.listing = Some(going.map_or_else(new, |it| Listing { asked: true, ..it }));
    }

    /// Where the listing goes on.
    pub(super) fn cookie(&self) -> u64 {
        self.listing.as_ref().map_or(0, |it| it.cookie)
    }

    /// A call ended. `there`: what its names are at that moment. Names of one that may be carried
    /// out yet rest `until` then.
    pub(super) fn end(
        &mut self,
        asked: &AskedOfNames,
        status: Status,
        there: &Things,
        until: Nanos,
    ) -> Result<(), String> {
        let ok = status == Status::Ok;
        let same_life = self.crashes == asked.crashes;
        if same_life && ok && asked.status != Status::Ok {
            return Err(format!("it cannot be, and should have been {:?}", asked.status));
        }
        if asked.call == NameCall::Sync {
            return self.end_sync(asked, ok);
        }
        if let NameCall::List { .. } = asked.call {
            // What it tells is looked at by itself.
            return Ok(());
        }
        let is_told = status == asked.status;
        let changes = asked.changes();
        if !same_life && ok {
            return self.end_after_crash(asked, there);
        }
        // One that would have changed nothing may find something else when it is carried out.
        if !same_life || asked.call.may_change() && !is_told {
            self.rest(asked, until);
            return Ok(());
        }
        let wanted = if is_told { &asked.after } else { &asked.before };
        self.free(wanted.keys());
        if there != wanted {
            return Err(format!("there is {there:?}, and should be {wanted:?}"));
        }
        for (&name, &now) in wanted.iter().filter(|_| changes) {
            let durable = asked.call.is_durable();
            let name = &mut self.names[name];
            (name.now, name.told) = (now, !durable);
            if durable {
                name.may_be = [now].into();
            }
        }
        self.made_stable += u64::from(changes && asked.call.is_durable());
        Ok(())
    }

    /// Names of a call that may be carried out yet rest until then.
    fn rest(&mut self, asked: &AskedOfNames, until: Nanos) {
        let (mut before, mut after) = (asked.before.clone(), asked.after.clone());
        if asked.crashes != self.crashes {
            before = asked.after.keys().map(|&name| (name, self.names[name].now)).collect();
            after = asked.call.outcome(|name| self.names[name].now).1;
        }
        self.rests.push(Rest { until, before, after });
    }

    /// A call ended well that was made before a crash: it was carried out before it, or since.
    fn end_after_crash(&mut self, asked: &AskedOfNames, there: &Things) -> Result<(), String> {
        self.free(asked.after.keys());
        let left: Things = asked.after.keys().map(|&it| (it, self.names[it].now)).collect();
        let (status, since) = asked.call.outcome(|name| self.names[name].now);
        if *there != left && *there != since {
            return Err(format!("there is {there:?}, the crash left {left:?}"));
        }
        let durable = asked.call.is_durable();
        let is_done = *there == asked.after || status == Status::Ok && *there == since;
        if durable && !is_done {
            return Err(format!("it was to be durable, and there is {there:?}"));
        }
        for (&name, &now) in there {
            let name = &mut self.names[name];
            (name.now, name.told) = (now, false);
            name.may_be.insert(now);
            if durable {
                name.may_be = [now].into();
            }
        }
        Ok(())
    }

    fn end_sync(&mut self, asked: &AskedOfNames, ok: bool) -> Result<(), String> {
        if !ok {
            // Its caller knows now.
            self.lost = false;
            return Ok(());
        }
        let same_life = asked.crashes == self.crashes;
        if same_life && self.lost {
            return Err("a crash has taken changes that were acknowledged before it".to_owned());
        }
        for (&number, covered) in &asked.covers {
            let name = &mut self.names[number];
            if name.changes != covered.changes {
                continue;
            }
            // If it was told after a crash, that is what the crash must have left.
            if covered.told && name.now != covered.now {
                return Err(format!("{} was synced as {covered:?}: {name:?}", NAMES[number]));
            }
            name.may_be = [name.now].into();
        }
        self.made_stable += 1;
        Ok(())
    }

    fn free<'a>(&mut self, names: impl Iterator<Item = &'a usize>) {
        names.for_each(|&name| self.names[name].busy = false);
    }

    /// Its client is gone with a call under way.
    pub(super) fn leave(&mut self, asked: &AskedOfNames, until: Nanos) {
        self.listing = None;
        self.rest(asked, until);
    }

    /// Nobody is left who was told of changes.
    pub(super) fn forget_told(&mut self) {
        self.lost = false;
        self.names.iter_mut().for_each(|name| name.told = false);
    }

    /// Names that have rested long enough are what is there.
    pub(super) fn settle(
        &mut self,
        now: Nanos,
        there: impl Fn(usize) -> Thing,
    ) -> Result<(), String> {
        let rests = std::mem::take(&mut self.rests).into_iter();
        let (over, rests): (Vec<_>, _) = rests.partition(|it| it.until <= now);
        self.rests = rests;
        for Rest { before, after, .. } in over {
            self.free(after.keys());
            let there: Things = after.keys().map(|&name| (name, there(name))).collect();
            if there != before && there != after {
                return Err(format!("there is {there:?}, neither {before:?} nor {after:?}"));
            }
            for (name, now) in there {
                (self.names[name].now, self.names[name].told) = (now, false);
            }
        }
        Ok(())
    }

    /// The node crashed, and has that left. `under_way`: calls that may be carried out yet. Returns
    /// how often something was made stable that the crash has left.
    pub(super) fn crash<'a>(
        &mut self,
        there: impl Fn(usize) -> Thing,
        under_way: impl Iterator<Item = &'a AskedOfNames>,
    ) -> Result<u64, String> {
        self.crashes += 1;
        self.listing = None;
        for rest in std::mem::take(&mut self.rests) {
            self.free(rest.after.keys());
        }
        for (number, name) in self.names.iter_mut().enumerate() {
            let left = there(number);
            if !name.may_be.contains(&left) {
                let (of, may_be) = (NAMES[number], &name.may_be);
                return Err(format!("a crash leaves {left:?} of {of}, and not one of {may_be:?}"));
            }
            self.lost |= name.told && left != name.now;
            (name.now, name.told) = (left, false);
            name.may_be = [left].into();
        }
        for asked in under_way {
            let (_, since) = asked.call.outcome(|name| self.names[name].now);
            for (name, after) in since {
                self.names[name].may_be.insert(after);
            }
        }
        Ok(std::mem::take(&mut self.made_stable))
    }

    /// A part of a listing ended; `None`: it failed. Whether it was the last part.
    pub(super) fn end_list(&mut self, told: Option<Listed>) -> Result<bool, String> {
        let Some(mut listing) = self.listing.take() else { return Ok(false) };
        let Some(Listed { names, next }) = told else { return Ok(false) };
        for (number, kind, inode) in names {
            if listing.seen.contains(&number) {
                return Err(format!("name {number} is listed twice"));
            }
            listing.seen.push(number);
            let Some(name) = self.names.get(number) else { continue };
            let is_right = match name.now {
                Nothing => false,
                Directory => kind == FileKind::Directory,
                File(file) => {
                    kind == FileKind::File && inode.is_none_or(|it| it == u64::from(file.0))
                }
            };
            if self.stays(&listing, number) && !is_right {
                return Err(format!("{} is listed as {kind:?} {inode:?}: {name:?}", NAMES[number]));
            }
        }
        if let Some(cookie) = next {
            self.listing = Some(Listing { cookie, asked: false, ..listing });
            return Ok(false);
        }
        let mut own = if listing.below { TOP..NAMES.len() } else { 0..TOP };
        let is_missed = |number: &usize| {
            let is_there = self.names[*number].now != Nothing;
            is_there && self.stays(&listing, *number) && !listing.seen.contains(number)
        };
        let missed = own.find(is_missed).or((!listing.seen.contains(&STAYS)).then_some(STAYS));
        missed.map_or(Ok(true), |number| Err(format!("name {number} is not listed: {self:?}")))
    }

    /// Whether a name is what it was when a listing began.
    fn stays(&self, listing: &Listing, number: usize) -> bool {
        let name = &self.names[number];
        !name.busy && name.changes == listing.changes[number]
    }

    /// How many names a file has, if that is known.
    pub(super) fn links(&self, file: InodeId, but: &AskedOfNames) -> Option<u32> {
        let known = |(number, name): (usize, &Name)| !name.busy || but.after.contains_key(&number);
        let all_known = self.names.iter().enumerate().all(known);
        all_known.then(|| self.names.iter().filter(|it| it.now == File(file)).count() as u32)
    }

    /// What a name is, which nothing is about but that call.
    pub(super) fn now(&self, name: usize) -> Thing {
        self.names[name].now
    }

    /// What must be there at the end is there.
    pub(super) fn judge(&self, there: impl Fn(usize) -> Thing) -> Result<(), String> {
        let wrong = self.names.iter().enumerate().find(|(number, name)| {
            let there = there(*number);
            let right = there == name.now || name.busy && name.may_be.contains(&there);
            !right
        });
        wrong.map_or(Ok(()), |(number, name)| {
            Err(format!("{} is {:?} at the end: {name:?}", NAMES[number], there(number)))
        })
    }
}

#[cfg(test)]
mod tests {
    use piped_core::call::Over;

    use super::*;

    const ONE: Thing = File(InodeId(1));
    const LATER: Nanos = Nanos(100);

    /// `a` is a file.
    fn names() -> Names {
        let mut files = [None; NAMES.len()];
        files[0] = Some(InodeId(1));
        Names::new(files)
    }

    fn rename(durable: bool) -> NameCall {
        NameCall::Rename { from: 0, to: 1, over: Over::Replace, durable }
    }

    fn things<const N: usize>(things: [(usize, Thing); N]) -> Things {
        things.into()
    }

    fn crash(names: &mut Names, a: Thing, b: Thing) -> Result<u64, String> {
        names.crash(|name| [a, b].get(name).copied().unwrap_or(Nothing), std::iter::empty())
    }

    #[test]
    fn a_call_has_one_outcome() {
        let mut names = names();
        let asked = names.begin(0, rename(false));
        assert!(!names.is_free(NameCall::Stat { name: 1 }), "it is about that name");
        let (before, after) = (things([(0, ONE), (1, Nothing)]), things([(0, Nothing), (1, ONE)]));
        assert!(names.end(&asked, Status::Ok, &before, LATER).is_err(), "told and not done");
        assert!(names.end(&asked, Status::Ok, &after, LATER).is_ok());
        let again = names.begin(0, rename(false));
        assert_eq!(again.status, Status::NotFound);
        assert!(names.end(&again, Status::Ok, &after, LATER).is_err(), "it cannot be");
        assert!(names.end(&again, Status::NotFound, &before, LATER).is_err(), "and is undone");
        assert!(names.end(&again, Status::NotFound, &after, LATER).is_ok());
    }

    #[test]
    fn what_was_given_up_is_done_or_not_within_its_time() {
        let mut names = names();
        let asked = names.begin(0, rename(false));
        let before = things([(0, ONE), (1, Nothing)]);
        assert!(names.end(&asked, Status::DeadlineExceeded, &before, LATER).is_ok());
        assert!(names.settle(Nanos(99), |_| ONE).is_ok(), "not yet");
        assert!(!names.is_free(NameCall::Stat { name: 0 }));
        assert!(names.settle(LATER, |_| ONE).is_err(), "half of it");
        let asked = names.begin(0, rename(false));
        assert!(names.end(&asked, Status::DeadlineExceeded, &before, LATER).is_ok());
        let done = |name| if name == 1 { ONE } else { Nothing };
        assert!(names.settle(LATER, done).is_ok());
        assert_eq!(names.now(1), ONE);
        assert!(names.is_free(NameCall::Stat { name: 0 }));
    }

    #[test]
    fn what_is_durable_or_synced_holds_and_the_rest_may_be_lost() {
        let after = things([(0, Nothing), (1, ONE)]);
        let renamed = |durable| {
            let mut names = names();
            let asked = names.begin(0, rename(durable));
            names.end(&asked, Status::Ok, &after, LATER).expect("it is done");
            names
        };
        assert!(crash(&mut renamed(true), ONE, Nothing).is_err());
        assert!(crash(&mut renamed(true), Nothing, ONE).is_ok());
        assert!(crash(&mut renamed(false), ONE, Nothing).is_ok());
        assert!(crash(&mut renamed(false), Directory, Nothing).is_err(), "never was");
        let mut synced = renamed(false);
        let sync = synced.begin(0, NameCall::Sync);
        synced.end(&sync, Status::Ok, &Things::new(), LATER).expect("all is well");
        assert!(crash(&mut synced, ONE, Nothing).is_err());
        let mut late = renamed(false);
        let sync = late.begin(0, NameCall::Sync);
        let other = NameCall::Make { name: 2, parents: false };
        let made = late.begin(0, other);
        late.end(&made, Status::Ok, &things([(2, Directory)]), LATER).expect("it is made");
        late.end(&sync, Status::Ok, &Things::new(), LATER).expect("all is well");
        assert!(crash(&mut late, Nothing, ONE).is_ok(), "what came since is not covered");
    }

    #[test]
    fn a_sync_does_not_vouch_for_what_a_crash_took() {
        let mut names = names();
        let asked = names.begin(0, rename(false));
        let after = things([(0, Nothing), (1, ONE)]);
        names.end(&asked, Status::Ok, &after, LATER).expect("it is done");
        let early = names.begin(0, NameCall::Sync);
        crash(&mut names, ONE, Nothing).expect("it may be lost");
        assert!(names.end(&early, Status::Ok, &Things::new(), LATER).is_err());
        let sync = names.begin(0, NameCall::Sync);
        assert!(names.end(&sync, Status::Ok, &Things::new(), LATER).is_err());
        let sync = names.begin(0, NameCall::Sync);
        assert!(names.end(&sync, Status::OutcomeUnknown, &Things::new(), LATER).is_ok());
        let sync = names.begin(0, NameCall::Sync);
        assert!(names.end(&sync, Status::Ok, &Things::new(), LATER).is_ok(), "it was said");
    }

    #[test]
    fn a_call_that_goes_on_after_a_crash_finds_what_is_left() {
        let mut names = names();
        let asked = names.begin(0, rename(true));
        let left = |name| if name == 0 { ONE } else { Nothing };
        names.crash(left, [&asked].into_iter()).expect("it was not done yet");
        let before = things([(0, ONE), (1, Nothing)]);
        assert!(names.end(&asked, Status::Ok, &before, LATER).is_err(), "durable, and not there");
        let after = things([(0, Nothing), (1, ONE)]);
        assert!(names.end(&asked, Status::Ok, &after, LATER).is_ok());
        assert!(crash(&mut names, ONE, Nothing).is_err(), "and it holds");
    }

    #[test]
    fn a_name_that_stays_is_listed_once() {
        let list = NameCall::List { below: false, stats: false };
        let told = |names: &[(usize, FileKind)], next| {
            let names = names.iter().map(|&(name, kind)| (name, kind, None)).collect();
            Some(Listed { names, next })
        };
        let (file, directory) = (FileKind::File, FileKind::Directory);
        let stays = (STAYS, directory);
        let begun = || {
            let mut names = names();
            names.begin(0, list);
            names
        };
        assert_eq!(begun().end_list(told(&[(0, file), stays], None)), Ok(true));
        assert!(begun().end_list(told(&[stays], None)).is_err(), "a is missing");
        assert!(begun().end_list(told(&[(0, file)], None)).is_err(), "sub is missing");
        assert!(begun().end_list(told(&[(0, directory), stays], None)).is_err(), "a is a file");
        assert!(begun().end_list(told(&[(0, file), (1, file), stays], None)).is_err(), "no b");
        let mut parts = begun();
        assert_eq!(parts.end_list(told(&[(0, file)], Some(7))), Ok(false));
        assert_eq!(parts.cookie(), 7);
        parts.begin(0, list);
        assert!(parts.end_list(told(&[(0, file), stays], None)).is_err(), "twice");
        let mut changed = begun();
        let made = changed.begin(0, NameCall::Make { name: 1, parents: false });
        changed.end(&made, Status::Ok, &things([(1, Directory)]), LATER).expect("it is made");
        let with_b = told(&[(0, file), stays, (1, directory)], None);
        assert_eq!(changed.end_list(with_b), Ok(true), "it may be seen, or not");
    }
}
