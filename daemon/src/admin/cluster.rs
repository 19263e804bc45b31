//! The cluster for operators: what is known, tokens, and keys that count no more.

use std::rc::Rc;

use hyper::StatusCode;
use piped_config::admin::cluster::{
    ClusterReport, EndToken, MadeToken, MemberReport, NewToken, Revoke, Revoked, TOKEN_SECONDS_MAX,
    TOKEN_USES_MAX, TokenReport,
};
use piped_config::admin::ending::Ended;
use piped_config::{GROUPS_MAX, JoinToken, check_node_name};
use piped_control::keyring::Identity;
use piped_control::parties::Credentials;
use piped_control::tokens::{Token, TokenFault};
use piped_core::units::Nanos;

use super::parse::Refused;
use crate::cluster::issue;
use crate::control::Control;
use crate::io::clock;

pub(super) fn show(control: &Control) -> ClusterReport {
    let times = clock::times();
    let (keyring, config, core) = (control.keyring(), control.config(), control.core.borrow());
    let identity = keyring.identity();
    let list = identity.and_then(Identity::revocations);
    let mut revoked: Vec<_> =
        identity.map(|it| it.revoked_here().iter().copied().collect()).unwrap_or_default();
    revoked.extend(identity.iter().flat_map(|it| it.revoked_by_cluster().keys()));
    let mut tokens = control.desk.tokens().borrow_mut();
    let tokens = tokens.iter(times.now).map(|(token, it)| TokenReport {
        token,
        name: it.name.clone(),
        groups: it.groups.clone(),
        uses: it.uses,
        seconds_left: it.until.since(times.now).0 / 1_000_000_000,
    });
    ClusterReport {
        keys: identity.map(|it| it.cluster().to_vec()).unwrap_or_default(),
        now: times.calendar,
        own: identity.and_then(Identity::certificate).map(MemberReport::from),
        signs: issue::signing_key_path(control).is_some(),
        issuer: config.cluster.issuer.as_str().to_owned(),
        trouble: control.desk.renewal().borrow().trouble().map(str::to_owned),
        members: core.members().iter().map(MemberReport::from).collect(),
        revocations: list.map_or(0, |list| list.number()),
        revoked,
        tokens: tokens.collect(),
    }
}

pub(super) fn make_token(
    control: &Control,
    who: &Credentials,
    body: NewToken,
) -> Result<MadeToken, Refused> {
    check(&body).map_err(Refused::bad)?;
    let keyring = control.keyring();
    let identity = keyring.identity().filter(|it| it.has_cluster());
    let identity = identity.filter(|_| issue::signing_key_path(control).is_some());
    let identity = identity.ok_or_else(|| {
        let text = "this node does not sign for a cluster: `pipectl cluster init` makes one, and \
            signing_key_file in [cluster] has another node sign, too";
        Refused::new(StatusCode::CONFLICT, text)
    })?;
    let no_token =
        |error: std::io::Error| Refused::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
    let made = JoinToken::generate(identity.own().public()).map_err(no_token)?;
    let now = clock::now();
    let NewToken { uses, seconds, name, groups } = body;
    let token = Token { name, groups, uses, until: now + Nanos::from_millis(seconds * 1000) };
    let opened = control.desk.tokens().borrow_mut().open(issue::digest(made.secret()), token, now);
    let number = opened.map_err(|fault: TokenFault| {
        Refused::new(StatusCode::TOO_MANY_REQUESTS, fault.to_string())
    })?;
    tracing::info!(operator = who.uid, number, uses, seconds, "a token was made to join with");
    let config = control.config();
    let at = config.discovery.advertised(config.listen.address).into_iter().next();
    let at = at.map(|at| at.to_string()).unwrap_or_default();
    Ok(MadeToken { number, token: made.to_string(), at })
}

fn check(body: &NewToken) -> Result<(), String> {
    if !(1..=TOKEN_USES_MAX).contains(&body.uses) {
        return Err(format!("a token is for 1 to {TOKEN_USES_MAX} nodes, not for {}", body.uses));
    }
    if !(1..=TOKEN_SECONDS_MAX).contains(&body.seconds) {
        return Err("a token is open for a second at least, and a week at most".to_owned());
    }
    if body.groups.len() > GROUPS_MAX {
        return Err(format!("a node is in {GROUPS_MAX} groups at most"));
    }
    body.name.iter().chain(&body.groups).try_for_each(|name| check_node_name(name))
}

pub(super) fn end_token(
    control: &Control,
    who: &Credentials,
    body: EndToken,
) -> Result<Ended, Refused> {
    let EndToken { token } = body;
    if !control.desk.tokens().borrow_mut().close(token) {
        let text = format!("no token {token} is open; `pipectl cluster token list` shows them");
        return Err(Refused::new(StatusCode::NOT_FOUND, text));
    }
    tracing::info!(operator = who.uid, token, "a token was ended");
    Ok(Ended { ended: format!("token {token}") })
}

pub(super) async fn revoke(
    control: &Rc<Control>,
    who: &Credentials,
    body: Revoke,
) -> Result<Revoked, Refused> {
    let revoked = issue::revoke(control, &body.node).await;
    let (key, list) = revoked.map_err(|why| Refused::new(StatusCode::CONFLICT, why))?;
    tracing::info!(operator = who.uid, %key, number = list.number(), "a key was revoked");
    Ok(Revoked { key, number: list.number(), list: list.to_string() })
}
