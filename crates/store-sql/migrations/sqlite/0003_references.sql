-- Records that the provider calls by a name of its own. Few, so the index says nothing of the others.
CREATE INDEX record_by_reference ON record (provider_reference) WHERE provider_reference IS NOT NULL;
