// How the site's search orders what it finds: pages whose titles have the word, then other pages,
// then names of the code, of which many have a common word such as "drain" within them.
var Scorer = {
  objNameMatch: 4,
  objPartialMatch: 0,
  objPrio: { 0: 2, 1: 1, 2: 0 },
  objPrioDefault: 0,
  title: 20,
  partialTitle: 10,
  term: 5,
  partialTerm: 2,
};
