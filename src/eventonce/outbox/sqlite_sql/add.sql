INSERT INTO eventonce_outbox (added, grp, identity, event) VALUES (:added, :grp, :identity, :event)
