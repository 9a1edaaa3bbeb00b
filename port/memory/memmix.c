#include <math.h>
#include <string.h>
// P [K][n] probs; ctx[n] in [0,C); share<0: 1/(t+2) ; returns bits
double fixedshare(int K,int n,const double*lp,const int*ctx,int C,double share,double decay,double*out){
  static double w[64][64]; static double cnt[64]; for(int c=0;c<C;c++){cnt[c]=0;for(int k=0;k<K;k++)w[c][k]=1.0/K;}
  double tot=0;
  for(int t=0;t<n;t++){int c=ctx?ctx[t]:0;double best=-1e300;for(int k=0;k<K;k++)if(lp[k*(long)n+t]>best)best=lp[k*(long)n+t];
    double s=0,q[64];for(int k=0;k<K;k++){q[k]=w[c][k]*exp(lp[k*(long)n+t]-best);s+=q[k];}
    double l=best+log(s);out[t]=l;tot-=l/log(2);double a=share<0?1/(cnt[c]+2):share;cnt[c]+=1;for(int k=0;k<K;k++)w[c][k]=(1-a)*q[k]/s+a/K;}
  return tot;}
