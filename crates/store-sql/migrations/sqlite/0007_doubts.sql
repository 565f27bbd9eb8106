-- Outcomes that nobody knows, by age: all of them, and those that wait for an operator. Every node looks at the first again and again.
CREATE INDEX record_doubts ON record (doubt_since) WHERE state = 4;
CREATE INDEX record_parked ON record (doubt_since) WHERE state = 4 AND parked = 1;
