//! What was said to be durable is there after the power is cut, whenever the daemon was killed.

use std::time::Duration;

use piped_client::{Cause, Request};
use rustix::process::Signal;
use system_tests::process::eventually;

use crate::nodes::{LATE, PLACES, Place, Session, check_bytes, noise};
use crate::{World, world};

const BLOCK: usize = 16 * 1024;
const BLOCKS: usize = 64;

/// How a block is made durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Durable,
    Sync,
    Copy,
}

/// Blocks that were said to be durable, with what they have.
type Told = std::collections::BTreeMap<usize, Vec<u8>>;

#[test]
fn nothing_is_durable_before_the_device_has_synced_it() {
    let Some(World { nodes, sick, sound }) = world() else { return };
    let mut session = nodes.client();
    for place in PLACES {
        let zeros = vec![0; BLOCK * BLOCKS];
        sick.put("f", &zeros);
        std::fs::write(sound.path().join("source"), noise(9, BLOCK)).expect("written");
        let file = session.open(place, "sick", sick.path(), "f");
        let source = session.open(place, "sound", sound.path(), "source");
        let before = sick.counts().syncs;
        session.write(&file, 0, &noise(1, BLOCK), false);
        assert_eq!(sick.counts().syncs, before, "{place:?}: nobody asked for it");
        sick.cut_power();
        check_bytes(&sick.content("f"), &zeros);

        session.write(&file, 0, &noise(1, BLOCK), true);
        assert!(sick.counts().syncs > before, "{place:?}");
        // Unaligned: its edges take another way.
        session.write(&file, 4 * BLOCK as u64 + 77, &noise(2, BLOCK), true);
        sick.cut_power();
        check_bytes(&sick.content("f")[..BLOCK], &noise(1, BLOCK));
        check_bytes(&sick.content("f")[4 * BLOCK + 77..][..BLOCK], &noise(2, BLOCK));

        session.write(&file, 0, &noise(3, BLOCK), false);
        let copy = Request::copy(&source, 0, &file, 2 * BLOCK as u64, BLOCK as u64);
        session.run(copy.deadline(LATE)).expect("sound");
        session.run(Request::sync(&file).deadline(LATE)).expect("sound");
        sick.cut_power();
        check_bytes(&sick.content("f")[..BLOCK], &noise(3, BLOCK));
        check_bytes(&sick.content("f")[2 * BLOCK..][..BLOCK], &noise(9, BLOCK));
        session.check(&file, 0, &noise(3, BLOCK));
    }
}

#[test]
fn what_was_durable_survives_the_daemon_and_the_power() {
    let Some(World { mut nodes, sick, sound }) = world() else { return };
    std::fs::write(sound.path().join("source"), noise(0, BLOCK * BLOCKS)).expect("written");
    let mut number = 0;
    for place in PLACES {
        for (round, way) in
            [Way::Durable, Way::Durable, Way::Sync, Way::Copy].into_iter().enumerate()
        {
            sick.put("f", &vec![0; BLOCK * BLOCKS]);
            let session = nodes.client();
            // The one that has the file is killed after another number of requests each time.
            let after = 7 + 13 * round + place as usize;
            let victim = if place == Place::Remote { &mut nodes.beta } else { &mut nodes.alpha };
            let told = std::thread::scope(|scope| {
                let (sick, sound, number) = (&sick, sound.path(), &mut number);
                let work = scope.spawn(move || {
                    write_until_lost(session, (place, way), sick.path(), sound, number)
                });
                eventually("some are done", || {
                    let work_done = sick.counts().syncs as usize >= after || work.is_finished();
                    work_done.then_some(())
                });
                victim.process.signal(Signal::KILL);
                victim.process.exit();
                work.join().expect("it ends when the daemon does")
            });
            sick.cut_power();
            let content = sick.content("f");
            assert!(!told.is_empty(), "{place:?} {way:?}: nothing was told");
            for (block, bytes) in told {
                check_bytes(&content[block * BLOCK..][..BLOCK], &bytes);
            }
            let of = usize::from(place == Place::Remote);
            let settings = nodes.settings[of].clone();
            let victim = if of == 1 { &mut nodes.beta } else { &mut nodes.alpha };
            victim.restart(&settings);
            nodes.alpha.await_lanes();
            sick.reset_counts();
        }
    }
}

/// Writes block after block until a request fails; what was said to be durable by then. A block
/// that was asked for again and not told of may have either content, so it is not among them.
fn write_until_lost(
    mut session: Session,
    (place, way): (Place, Way),
    sick: &std::path::Path,
    sound: &std::path::Path,
    number: &mut u64,
) -> Told {
    let file = session.open(place, "sick", sick, "f");
    let source = session.open(place, "sound", sound, "source");
    let copied = noise(0, BLOCK * BLOCKS);
    let mut told = Told::new();
    let mut loose = Told::new();
    let deadline = Duration::from_secs(2);
    // Who is to kill the daemon may have given up.
    let most = *number + 100_000;
    loop {
        assert!(*number < most, "the daemon lives on");
        *number += 1;
        let block = *number as usize * 29 % BLOCKS;
        let offset = (block * BLOCK) as u64;
        let bytes = match way {
            Way::Copy => copied[block * BLOCK..][..BLOCK].to_vec(),
            _ => noise(*number, BLOCK),
        };
        told.remove(&block);
        loose.remove(&block);
        let result = match way {
            Way::Copy => {
                let copy = Request::copy(&source, offset, &file, offset, BLOCK as u64);
                session.run_or_gone(copy.deadline(deadline)).map(|it| it.map(drop))
            }
            _ => {
                let write = Request::write(&file, offset, session.filled(&bytes));
                let write = if way == Way::Durable { write.durable() } else { write };
                session.run_or_gone(write.deadline(deadline)).map(|it| it.map(drop))
            }
        };
        // It may be killed between two requests.
        let Some(result) = result else { return told };
        if let Err(error) = result {
            let lost = matches!(error.cause, Cause::Disconnected | Cause::Status(_));
            assert!(lost, "{error}");
            return told;
        }
        if way == Way::Durable {
            told.insert(block, bytes);
            continue;
        }
        loose.insert(block, bytes);
        if loose.len() == 4 {
            match session.run_or_gone(Request::sync(&file).deadline(deadline)) {
                Some(Ok(_)) => told.append(&mut loose),
                Some(Err(_)) | None => return told,
            }
        }
    }
}
