//! Advice on the unexpected-message buffer: the engine's records go through the model of
//! [`piped_model::buffer::advise`], on a thread of the blocking pool.

use hyper::StatusCode;
use piped_config::Limits;
use piped_config::admin::advice::{
    Advice, AdvisedLimit, ChannelAdvice, FactorAdvice, Measured, SenderAdvice,
};
use piped_core::ids::SessionId;
use piped_core::limits::{EARLY_GRANULE_BYTES, EARLY_STAGING_DIVISOR};
use piped_model::buffer::advise::{Bursts, Factor, joined};
use piped_report::shard::{ArrivalSender, ChannelArrivals};

use crate::admin::Refused;
use crate::control::Control;
use crate::shard::message::{LimitView, Mailbox, Message, Question, ShardGone};

/// Advice from all shards together.
pub(crate) async fn advise(control: &Control) -> Result<Advice, Refused> {
    let (mut shards, mut views, mut unseen) = (Vec::new(), Vec::new(), 0);
    for shard in &control.shards {
        let (arrivals, more) = ask(&shard.mailbox).await?;
        shards.push(arrivals);
        unseen += more;
        views.push(shard.mailbox.ask(|answer| Message::Ask(Question::Limits(answer))).await?);
    }
    let limits = control.limiter.limits();
    let computed = tokio::task::spawn_blocking(move || report(&limits, &shards, &views, unseen));
    let mut advice = computed
        .await
        .map_err(|error| Refused::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let core = control.core.borrow();
    for channel in &mut advice.channels {
        let id = piped_core::ids::ChannelId(channel.channel);
        channel.name = core.channels().name_of(id).map(str::to_owned);
    }
    Ok(advice)
}

/// Buffer that the messages of a shard need, in bytes.
pub(crate) async fn required(mailbox: &Mailbox) -> Result<u64, ShardGone> {
    let (arrivals, _) = ask(mailbox).await?;
    if arrivals.is_empty() {
        return Ok(0);
    }
    let needed = move || {
        let all: Vec<Seen<'_>> = with_messages(&arrivals).map(Seen::of).collect();
        together(&all.iter().collect::<Vec<_>>())
    };
    tokio::task::spawn_blocking(needed).await.map_err(|_| ShardGone)
}

async fn ask(mailbox: &Mailbox) -> Result<(Vec<ChannelArrivals>, u64), ShardGone> {
    mailbox.ask(|answer| Message::Ask(Question::Arrivals(answer))).await
}

/// Channels with remembered messages: a receiver that died before it received left none.
fn with_messages(channels: &[ChannelArrivals]) -> impl Iterator<Item = &ChannelArrivals> {
    channels.iter().filter(|channel| !channel.seen.is_empty())
}

/// Messages of a channel in the model's form.
struct Seen<'a> {
    arrivals: &'a ChannelArrivals,
    bursts: Bursts,
}

impl<'a> Seen<'a> {
    fn of(arrivals: &'a ChannelArrivals) -> Self {
        Self { arrivals, bursts: Bursts::of(&arrivals.seen, arrivals.copy_bytes_per_second) }
    }

    /// Size of one message of each sender.
    fn fixed(&self) -> u64 {
        self.arrivals.senders.iter().map(|sender| granules(sender.memory_bytes as f64)).sum()
    }

    /// Size needed if the model asks for this many bytes.
    fn needed(&self, memory: f64) -> u64 {
        needed(memory, self.arrivals.shares, self.fixed())
    }
}

/// Size in whole granules. If short messages share them, one more: the last message in the oldest
/// granule keeps it while the newest is being filled.
fn needed(memory: f64, shares: bool, fixed: u64) -> u64 {
    let sharing = if shares && memory > 0.0 { EARLY_GRANULE_BYTES } else { 0 };
    (granules(memory) + sharing).max(fixed)
}

fn granules(bytes: f64) -> u64 {
    // Sums of whole numbers, except for errors in the last digits.
    (bytes.round() as u64).next_multiple_of(EARLY_GRANULE_BYTES)
}

/// Size needed by channels with a common limit.
fn together(channels: &[&Seen<'_>]) -> u64 {
    let memory = joined(channels.iter().flat_map(|channel| channel.bursts.holds()));
    let shares = channels.iter().any(|channel| channel.arrivals.shares);
    needed(memory, shares, channels.iter().map(|channel| channel.fixed()).sum())
}

fn report(
    limits: &Limits,
    shards: &[Vec<ChannelArrivals>],
    views: &[LimitView],
    unseen: u64,
) -> Advice {
    let seen: Vec<Vec<Seen<'_>>> =
        shards.iter().map(|channels| with_messages(channels).map(Seen::of).collect()).collect();
    // Each shard has an equal part of it.
    let all = |channels: &Vec<Seen<'_>>| together(&channels.iter().collect::<Vec<_>>());
    let global = seen.iter().map(all).max().unwrap_or(0) * shards.len() as u64;
    let of = |channels: &Vec<Seen<'_>>, session: SessionId| {
        let its = channels.iter().filter(|channel| channel.arrivals.session == session);
        together(&its.collect::<Vec<_>>())
    };
    let sessions = seen.iter().flat_map(|channels| {
        channels.iter().map(move |channel| of(channels, channel.arrivals.session))
    });
    let client = sessions.max().unwrap_or(0);
    let any = seen.iter().any(|channels| !channels.is_empty());
    let parties = views.iter().flat_map(|view| &view.parties.clients);
    let limit = |name: &str, required: u64, configured: u64, high_bytes: u64| AdvisedLimit {
        name: name.to_owned(),
        required_bytes: any.then_some(required),
        configured_bytes: configured,
        high_bytes,
    };
    let limits_advised = vec![
        limit(
            "global.early_arrival",
            global,
            limits.global.early_arrival.0,
            views.iter().map(|view| view.limits.early_arrival.high).sum(),
        ),
        limit(
            "client.early_arrival",
            client,
            limits.client.early_arrival.0,
            parties.map(|party| party.early_arrival.high).max().unwrap_or(0),
        ),
    ];
    let channels = seen.iter().enumerate();
    Advice {
        limits: limits_advised,
        most_bytes: limits.global.staging.0 / EARLY_STAGING_DIVISOR,
        stalled: views.iter().map(|view| view.limits.stalled).sum(),
        unseen,
        channels: channels
            .flat_map(|(shard, channels)| channels.iter().map(move |it| channel(shard, it)))
            .collect(),
    }
}

fn channel(shard: usize, seen: &Seen<'_>) -> ChannelAdvice {
    let Seen { arrivals, bursts } = seen;
    let need = bursts.need();
    let required_bytes = seen.needed(need.memory_bytes);
    let [model, whole] = [need.model_bytes, need.whole_bytes].map(|bytes| bytes.round() as u64);
    let rounded = granules(need.memory_bytes);
    let factor = |factor: Factor| FactorAdvice {
        factor: name_of(factor).to_owned(),
        required_bytes: seen.needed(bursts.with(factor).need().memory_bytes),
    };
    ChannelAdvice {
        name: None,
        channel: arrivals.channel.0,
        session: arrivals.session.0,
        shard: shard as u32,
        required_bytes,
        model_bytes: model,
        whole_bytes: whole.saturating_sub(model),
        rounding_bytes: rounded.saturating_sub(whole),
        sharing_bytes: needed(need.memory_bytes, arrivals.shares, 0) - rounded,
        fixed_bytes: seen.fixed(),
        high_bytes: arrivals.memory.high,
        messages: arrivals.messages,
        stalled: arrivals.stalled,
        is_cut: arrivals.is_cut && need.is_of_first,
        senders: arrivals.senders.iter().map(sender).collect(),
        bursts: bursts.count() as u64,
        measured: measured(bursts),
        factors: Factor::ALL.map(factor).to_vec(),
    }
}

fn sender(sender: &ArrivalSender) -> SenderAdvice {
    SenderAdvice {
        peer: sender.peer.clone(),
        messages: sender.messages,
        fixed_bytes: granules(sender.memory_bytes as f64),
    }
}

fn measured(bursts: &Bursts) -> Measured {
    let means = bursts.means();
    let some = |rate: f64| (rate > 0.0).then_some(rate);
    Measured {
        messages: means.messages,
        bytes: means.bytes,
        arrival_rate: some(means.arrival_rate),
        copy_rate: some(means.copy_rate),
        startup_seconds: means.startup_seconds,
        delay_seconds: means.delay_seconds,
    }
}

const fn name_of(factor: Factor) -> &'static str {
    match factor {
        Factor::Bandwidth => "bandwidth_doubled",
        Factor::Delay => "delay_doubled",
        Factor::CopyRate => "copy_rate_doubled",
        Factor::NoStartup => "no_startup",
        Factor::Messages => "half_more_messages",
    }
}

#[cfg(test)]
mod tests {
    use piped_core::ids::ChannelId;
    use piped_model::buffer::advise::{self, Way};
    use piped_report::shard::Gauge;

    use super::*;

    /// A number of messages at once that are asked for a second later, one a millisecond.
    fn arrivals(session: u32, messages: usize, bytes: f64, memory: f64) -> ChannelArrivals {
        let ended = |number: usize| 1.0 + 1e-3 * number as f64;
        let seen = (0..messages).map(|number| advise::Seen {
            came_seconds: 1e-6 * number as f64,
            landed_seconds: 1e-6 * (number + 1) as f64,
            taken_seconds: ended(number) - 5e-4,
            ended_seconds: ended(number),
            bytes,
            memory_bytes: memory,
            way: Way::Kept,
        });
        ChannelArrivals {
            channel: ChannelId(session),
            session: SessionId(session),
            open: true,
            messages: messages as u64,
            is_cut: false,
            stalled: 0,
            memory: Gauge::default(),
            shares: memory < 8192.0,
            copy_bytes_per_second: 1e9,
            senders: vec![ArrivalSender {
                peer: Some(String::from("beta")),
                messages: messages as u32,
                memory_bytes: memory as u64,
            }],
            seen: seen.collect(),
        }
    }

    fn required(advice: &Advice) -> [Option<u64>; 2] {
        [0, 1].map(|at| advice.limits[at].required_bytes)
    }

    #[test]
    fn without_messages_there_is_no_advice() {
        let advice = report(&Limits::default(), &[Vec::new()], &[], 0);
        assert_eq!(required(&advice), [None, None]);
        assert_eq!(advice.most_bytes, Limits::default().global.staging.0 / 4);
    }

    #[test]
    fn a_session_needs_what_it_has_and_a_shard_what_all_have() {
        let granule = EARLY_GRANULE_BYTES;
        let channels = vec![arrivals(1, 4, 60_000.0, 65_536.0), arrivals(2, 3, 60_000.0, 65_536.0)];
        let advice = report(&Limits::default(), &[channels, Vec::new()], &[], 0);
        // Two shards with half of it each.
        assert_eq!(required(&advice), [Some(2 * 7 * granule), Some(4 * granule)]);
        let parts = |it: &ChannelAdvice| {
            it.model_bytes + it.whole_bytes + it.rounding_bytes + it.sharing_bytes
        };
        for (channel, messages) in advice.channels.iter().zip([4, 3]) {
            assert_eq!(channel.required_bytes, messages * granule);
            assert_eq!(parts(channel), channel.required_bytes, "{channel:?}");
            assert_eq!(channel.rounding_bytes, messages * (granule - 60_000));
            assert_eq!(channel.fixed_bytes, granule);
            let more = &channel.factors[4];
            assert_eq!(more.factor, "half_more_messages");
            assert_eq!(more.required_bytes, (messages + messages.div_ceil(2)) * granule);
        }
    }

    #[test]
    fn short_messages_need_a_granule_more_than_they_fill() {
        let channels = vec![arrivals(1, 100, 1000.0, 1024.0)];
        let advice = report(&Limits::default(), &[channels], &[], 0);
        assert_eq!(required(&advice), [Some(3 * EARLY_GRANULE_BYTES); 2]);
        assert_eq!(advice.channels[0].sharing_bytes, EARLY_GRANULE_BYTES);
    }

    #[test]
    fn a_message_of_each_sender_finds_room_however_soon_they_were_asked_for() {
        let mut direct = arrivals(1, 5, 60_000.0, 65_536.0);
        direct.seen.iter_mut().for_each(|it| it.way = Way::Direct);
        direct.senders.push(ArrivalSender { peer: None, messages: 1, memory_bytes: 131_072 });
        let advice = report(&Limits::default(), &[vec![direct]], &[], 0);
        assert_eq!(required(&advice), [Some(3 * EARLY_GRANULE_BYTES); 2]);
    }
}
