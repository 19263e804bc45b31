//! Transfers as Chrome's trace events, which Perfetto reads too: a process for each transfer, with
//! two threads for each stage, measured and predicted.

use piped_report::trace::TransferTrace;
use serde_json::{Value, json};

use super::bars::{self, Bar};
use super::{end_of, heading};

/// JSON of all transfers.
pub(crate) fn json(transfers: &[TransferTrace]) -> Value {
    let mut events = Vec::new();
    for (index, transfer) in transfers.iter().enumerate() {
        let process = index + 1;
        events.push(name("process_name", process, 0, &heading(transfer)));
        for (stage, title) in transfer.stages.iter().enumerate() {
            let measured = 2 * stage + 1;
            for (thread, words, visits) in [
                (measured, title.clone(), &transfer.measured),
                (measured + 1, format!("{title}, predicted"), &transfer.predicted),
            ] {
                let bars = bars::bars(visits, stage, end_of(transfer));
                if bars.is_empty() {
                    continue;
                }
                events.push(name("thread_name", process, thread, &words));
                events.push(json!({
                    "ph": "M", "name": "thread_sort_index", "pid": process, "tid": thread,
                    "args": { "sort_index": thread },
                }));
                let event = |bar: &Bar| event(transfer, (process, thread), bar);
                events.extend(bars.iter().map(event));
            }
        }
    }
    json!({ "displayTimeUnit": "ns", "traceEvents": events })
}

fn name(what: &str, process: usize, thread: usize, name: &str) -> Value {
    json!({ "ph": "M", "name": what, "pid": process, "tid": thread, "args": { "name": name } })
}

/// Event from its turn on: events of a thread must not overlap.
fn event(transfer: &TransferTrace, (process, thread): (usize, usize), bar: &Bar) -> Value {
    let micros = |nanos: u64| nanos as f64 / 1e3;
    json!({
        "ph": "X",
        "name": crate::units::bytes(bar.bytes),
        "cat": if bar.left { "fragment" } else { "fragment that never left" },
        "pid": process,
        "tid": thread,
        "ts": micros(transfer.began_ns + bar.started),
        "dur": micros(bar.ended - bar.started),
        "args": {
            "offset": bar.offset,
            "bytes": bar.bytes,
            "waited_us": micros(bar.started - bar.arrived),
            "left": bar.left,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::served_read;
    use super::*;

    #[test]
    fn every_visit_is_an_event_and_those_of_a_thread_do_not_overlap() {
        let transfers = [served_read(), served_read()];
        let json = json(&transfers);
        let events = json["traceEvents"].as_array().expect("events");
        let complete: Vec<&Value> = events.iter().filter(|event| event["ph"] == "X").collect();
        let visits = |it: &TransferTrace| it.measured.len() + it.predicted.len();
        assert_eq!(complete.len(), transfers.iter().map(visits).sum::<usize>());
        for pid in 1..=2 {
            for tid in 1..=8 {
                let mut end = 0.0;
                for event in complete.iter().filter(|it| it["pid"] == pid && it["tid"] == tid) {
                    let start = event["ts"].as_f64().expect("a time");
                    assert!(start >= end - 1e-9, "{event}");
                    end = start + event["dur"].as_f64().expect("a time");
                }
            }
        }
        let names: Vec<&str> = events
            .iter()
            .filter(|event| event["name"] == "thread_name")
            .filter_map(|event| event["args"]["name"].as_str())
            .collect();
        assert!(names.contains(&"disk 8:0 read, predicted"), "{names:?}");
    }

    #[test]
    fn a_visit_is_where_the_transfer_is() {
        let mut transfer = served_read();
        transfer.began_ns = 5_000_000;
        let first = transfer.measured[0];
        let json = json(&[transfer]);
        let events = json["traceEvents"].as_array().expect("events");
        let event = events.iter().find(|event| event["ph"] == "X").expect("one");
        assert_eq!(event["ts"], 5_000.0 + first.arrived_ns as f64 / 1e3);
        assert_eq!(event["args"]["bytes"], first.bytes);
    }
}
