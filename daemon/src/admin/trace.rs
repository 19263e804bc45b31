//! `trace`: makes the shards record the next transfers, and reports what they recorded.

use std::rc::Rc;
use std::sync::Arc;

use hyper::StatusCode;
use piped_config::admin::Envelope;
use piped_config::admin::trace::{TraceBody, Traces};
use piped_engine::command::Command;
use piped_engine::shard::Recording;
use piped_report::trace::{TraceState, TransferTrace};

use super::parse::Refused;
use super::routes::{Reply, tell, written};
use crate::control::Control;
use crate::shard::message::{Message, Question, ShardGone};

/// Begins a recording, or ends the present one.
pub(super) async fn arm(control: &Rc<Control>, body: TraceBody) -> Result<Traces, Refused> {
    let TraceBody { transfers } = body;
    let recording = control.last_recording.get() + u64::from(transfers > 0);
    control.last_recording.set(recording);
    tell(control, Command::Trace { recording, transfers }).await?;
    if transfers > 0 {
        tracing::info!(recording, transfers, "fragments of transfers are recorded");
    }
    let (state, _) = ask(control).await?;
    Ok(traces(state, Vec::new()))
}

/// State of the recording, with its content once it is over.
pub(super) async fn report(control: &Rc<Control>) -> Result<Reply, Refused> {
    let (mut state, mut recordings) = ask(control).await?;
    // Every shard was asked for the whole number.
    if !state.over && state.ended >= state.wanted {
        tell(control, Command::Trace { recording: state.recording, transfers: 0 }).await?;
        (state, recordings) = ask(control).await?;
    }
    let shards = control.shards.len();
    // Evaluating plans and writing megabytes of JSON must not block the thread that serves
    // everybody.
    let work = move || {
        let transfers =
            if state.over { merge(&recordings, shards, state.wanted) } else { Vec::new() };
        Envelope::new(traces(state, transfers)).json()
    };
    let json = tokio::task::spawn_blocking(work).await.map_err(|error| {
        let text = format!("the recording could not be read: {error}");
        Refused::new(StatusCode::INTERNAL_SERVER_ERROR, text)
    })?;
    Ok(written(json))
}

async fn ask(
    control: &Rc<Control>,
) -> Result<(TraceState, Vec<(usize, Arc<Recording>)>), ShardGone> {
    let mut all = TraceState { over: true, ..TraceState::default() };
    let mut recordings = Vec::new();
    for (number, shard) in control.shards.iter().enumerate() {
        let question = |answer| Message::Ask(Question::Trace(answer));
        let (state, recording) = shard.mailbox.ask(question).await?;
        all.recording = all.recording.max(state.recording);
        all.wanted = all.wanted.max(state.wanted);
        all.begun += state.begun;
        all.ended += state.ended;
        all.over &= state.over;
        recordings.extend(recording.map(|recording| (number, recording)));
    }
    Ok((all, recordings))
}

fn traces<T>(state: TraceState, transfers: Vec<T>) -> Traces<T> {
    let TraceState { recording, wanted, begun, ended, over } = state;
    Traces { recording, wanted, begun, ended, over, transfers }
}

/// First `wanted` transfers of all shards, under the numbers that `explain` knows.
fn merge(recordings: &[(usize, Arc<Recording>)], shards: usize, wanted: u32) -> Vec<TransferTrace> {
    let first = recordings.iter().filter_map(|(_, recording)| recording.began()).min();
    let mut transfers: Vec<TransferTrace> = Vec::new();
    for (shard, recording) in recordings {
        let mut own = recording.report(first.unwrap_or_default());
        for transfer in own.iter_mut().filter(|transfer| transfer.id > 0) {
            transfer.id = transfer.id * shards as u64 + *shard as u64;
        }
        transfers.append(&mut own);
    }
    transfers.sort_by_key(|transfer| transfer.began_ns);
    transfers.truncate(wanted as usize);
    transfers
}
