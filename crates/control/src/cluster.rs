//! The cluster as the control thread knows it: whose certificates count, and whose no more.

use std::rc::Rc;
use std::sync::Arc;

use piped_config::{CertificateFault, NodeCertificate, Revocations};
use piped_core::units::Nanos;
use piped_engine::command::{Command, Expelled};

use crate::control::Control;
use crate::keyring::Keyring;
use crate::members::Members;
use crate::peers::Roll;
use crate::times::Times;

/// Most certificates of sources that are checked at one time: a signature takes about 100 us, and
/// others write the source. The rest has its turn when the peers settle next.
const CHECKED_MAX: usize = 256;

/// The nodes of the cluster as peers are made of them; none without a cluster.
pub(crate) fn roll<'a>(keyring: &'a Keyring, members: &'a Members) -> Option<Roll<'a>> {
    let identity = keyring.identity().filter(|identity| identity.has_cluster())?;
    let own = identity.certificate().map(|it| it.subject().name.as_str());
    Some(Roll { members, own })
}

impl<M: Clone> Control<M> {
    /// Takes the certificates that sources name, as far as they count.
    pub(crate) fn certify(&mut self, times: Times) {
        let keyring = self.keyring();
        let Some(identity) = keyring.identity().filter(|it| it.has_cluster()) else { return };
        let own = identity.own().public();
        let unknown = |(name, shown): &(&str, &NodeCertificate)| {
            let subject = shown.subject();
            let is_known = self.members.knows(shown);
            !is_known && subject.name == *name && subject.key != own
        };
        // Nodes that are known first: theirs were renewed, and a crowd of others must not end them.
        let (mut known, new): (Vec<_>, Vec<_>) = self
            .discovery()
            .certificates()
            .filter(unknown)
            .partition(|(name, _)| self.members().certificate(name).is_some());
        known.extend(new);
        let all = known.len();
        let (mut early, mut refused) = (Vec::new(), Vec::new());
        let mut counts = |shown: &NodeCertificate| {
            if matches!(shown.check_time(times.calendar), Err(CertificateFault::Early(_))) {
                early.push(shown.subject().from);
                return false;
            }
            let counts = identity.check(shown, times.calendar).is_ok();
            if !counts {
                refused.push(shown.signature());
            }
            counts
        };
        let known = known.into_iter().take(CHECKED_MAX).map(|(_, shown)| shown);
        let counted: Vec<NodeCertificate> = known.filter(|shown| counts(shown)).cloned().collect();
        early.into_iter().for_each(|from| self.members.expect(from));
        refused.into_iter().for_each(|signature| self.members.refuse(signature));
        counted.into_iter().for_each(|shown| self.enter_member(shown, times.now));
        // It ends: those that were looked at are known by now, one way or the other.
        if all > CHECKED_MAX {
            self.renew_discovery(times.now);
        }
    }

    /// Takes a certificate that was checked.
    pub(crate) fn enter_member(&mut self, shown: NodeCertificate, now: Nanos) {
        let subject = shown.subject();
        let (name, is_pinned) = (subject.name.clone(), self.keyring().is_reserved(&subject.name));
        let known = self.members().certificate(&name).map(|known| known.subject().key);
        let is_new = known.is_none();
        if known != Some(subject.key) {
            // What a source says of the node may count from now on.
            self.renew_discovery(now);
        }
        let has_other_groups = self.members.enter(shown);
        if is_new && !is_pinned && !self.config().listen.allow_plain.is_empty() {
            // Connections that only said the name.
            let names = vec![name];
            self.tell_all(&Command::ExpelPeers { names, plain: Expelled::Nobody });
        }
        if has_other_groups {
            self.take_back();
        }
    }

    /// Ends what nodes have whose certificates count no more: they expired, or a key was revoked,
    /// or another key signs. Their names. To be asked now and then, and after a reload.
    pub fn check_members(&mut self, times: Times) -> Vec<String> {
        let keyring = self.keyring();
        let gone = self.members.take_distrusted(keyring.identity(), times.calendar);
        let any = !gone.is_empty();
        // A key in [peers] holds whatever certificates say; groups do not.
        let gone: Vec<String> = gone.into_iter().filter(|it| !keyring.is_reserved(it)).collect();
        self.expel(&gone);
        if any {
            self.take_back();
        }
        // Nodes whose certificates are about to end may have others by now.
        let aging = self.members.take_aging(times.calendar);
        self.redial(&aging);
        // What a source says of them may count still, or again; and of others by now.
        if any || self.members.take_early(times.calendar) {
            self.renew_discovery(times.now);
        }
        gone
    }

    /// Dials anew those of these nodes that prove themselves by certificates.
    fn redial(&mut self, names: &[String]) {
        for name in names {
            if let Some(peer) = self.peers().by_name(name)
                && self.peers().target(peer).is_some_and(|target| target.key.is_none())
            {
                self.tell_all(&Command::RedialPeer { peer });
            }
        }
    }

    /// Has nodes leave, and dials them anew: they have to prove themselves again.
    pub(crate) fn expel(&mut self, names: &[String]) {
        if names.is_empty() {
            return;
        }
        self.redial(names);
        let names = names.to_vec();
        self.tell_all(&Command::ExpelPeers { names, plain: Expelled::Nobody });
    }

    /// Takes a list of revoked keys, from whatever source: the names of nodes that leave by it.
    /// None: it is not of this cluster, or no later than the one that there is.
    pub fn hear_revocations(&mut self, list: Revocations, times: Times) -> Option<Vec<String>> {
        let keyring = self.keyring();
        // Sources say the same again and again.
        keyring.identity().filter(|identity| identity.would_follow(&list))?;
        let mut next = Keyring::clone(&keyring);
        next.take_revocations(Arc::new(list));
        // Handshakes under way are under the keyring of before, and come to nothing.
        self.replace_keyring(Rc::new(next));
        Some(self.check_members(times))
    }

    /// Takes another certificate of this node, and shows it: nodes that it dials see it in a
    /// handshake only, and would have it leave when the one before ends.
    pub fn certify_self(&mut self, certificate: NodeCertificate) {
        let keyring = Keyring::clone(&self.keyring()).with_certificate(Some(certificate));
        self.replace_keyring(Rc::new(keyring));
        let names: Vec<String> = self.peers().names().map(str::to_owned).collect();
        self.redial(&names);
    }
}
