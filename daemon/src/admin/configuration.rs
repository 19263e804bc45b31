//! The configuration in effect, and loading it again.

use std::rc::Rc;

use hyper::StatusCode;
use piped_config::admin::{Configuration, Reloaded};

use super::parse::Refused;
use crate::control::Control;
use crate::reload;

pub(super) fn show(control: &Control) -> Configuration {
    control.reload.configuration(&control.config())
}

/// Reloads the configuration. Goes on also if the operator hangs up: it is done or refused, never
/// left in the middle.
pub(super) async fn reload(control: &Rc<Control>) -> Result<Reloaded, Refused> {
    let asked = Rc::clone(control);
    let reloaded = tokio::task::spawn_local(async move { reload::run(&asked).await });
    let failed = |error: tokio::task::JoinError| Err(error.to_string());
    reloaded
        .await
        .unwrap_or_else(failed)
        .map_err(|error| Refused::new(StatusCode::UNPROCESSABLE_ENTITY, error))
}
